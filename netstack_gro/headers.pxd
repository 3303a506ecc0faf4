from netstack_gro cimport codes, records, wire
from netstack_gro.records cimport Head, Parsed
from netstack_gro.wire cimport byte
cimport cython


@cython.locals(at=cython.int, kind=cython.int, tags=cython.int)
cdef int find_network(
    int link, const byte *base, Py_ssize_t offset, int length, Parsed *found
) noexcept

@cython.locals(
    size=cython.int, header=cython.int, total=cython.int, fragment=cython.int, reason=cython.int,
    check=cython.uint
)
cdef int _parse_ipv4(
    const byte *base, Py_ssize_t offset, int length, int wire_length, Parsed *found
) noexcept

@cython.locals(
    size=cython.int, total=cython.int, reason=cython.int, following=cython.int, at=cython.int,
    end=cython.int, count=cython.int, span=cython.int
)
cdef int parse_ipv6(
    const byte *base, Py_ssize_t offset, int length, int wire_length, Parsed *found
) noexcept

@cython.locals(room=cython.int, header=cython.int, flags=cython.int)
cdef int parse_tcp(const byte *base, Py_ssize_t offset, int reason, Parsed *found) noexcept

@cython.locals(room=cython.int)
cdef int parse_udp(const byte *base, Py_ssize_t offset, int reason, Parsed *found) noexcept

@cython.locals(reason=cython.int, version=cython.int, expected=cython.int)
cdef int parse(
    int link, const byte *base, Py_ssize_t offset, int length, int wire_length, Parsed *found
) noexcept

@cython.locals(at=cython.int)
cdef bint _same_link_flow(
    int link, const byte *a, Py_ssize_t a_at, const byte *b, Py_ssize_t b_at, int network
) noexcept

cdef bint same_flow(
    int link, Head *head, const byte *base, Py_ssize_t offset, Parsed *found
) noexcept

@cython.locals(digest=cython.ulonglong, ports=cython.ulonglong, at=cython.int)
cdef unsigned long long flow_digest(
    int link, const byte *base, Py_ssize_t offset, Parsed *found,
    unsigned long long digest, unsigned long long seed
) noexcept

@cython.locals(at=cython.Py_ssize_t, h=cython.Py_ssize_t, word=cython.uint)
cdef int network_difference(
    Head *head, const byte *base, Py_ssize_t offset, Parsed *found
) noexcept

@cython.locals(total=cython.ulonglong, at=cython.Py_ssize_t, word=cython.int)
cdef unsigned long long address_sum(
    const byte *base, Py_ssize_t offset, int version
) noexcept

@cython.locals(
    total=cython.ulonglong, count=cython.int, at=cython.Py_ssize_t, field=cython.uint
)
cdef bint checksum_right(
    const byte *base, Py_ssize_t offset, int length, int network, int transport, int version,
    int protocol, bint partial
) noexcept
