from netstack_gro cimport codes, headers, records, wire
from netstack_gro.records cimport Parsed, Slot
from netstack_gro.wire cimport BytePointer, ConstBytePointer, byte
cimport cython


@cython.final
cdef class Segments:
    cdef object _owner
    cdef const byte *_base
    cdef int _length
    cdef int _network
    cdef int _transport
    cdef int _header_length
    cdef int _version
    cdef int _protocol
    cdef int _gso_size
    cdef int _id_step
    cdef bint _partial
    cdef bint _no_checksum
    cdef int _at
    cdef int _number
    cdef int _identification
    cdef unsigned int _sequence
    cdef unsigned long long _network_sum
    cdef unsigned long long _pseudo_sum
    cdef unsigned long long _transport_sum
    cdef object _older
    cdef object _previous

    @cython.locals(base=ConstBytePointer, at=cython.int, covered=cython.ulonglong)
    cdef int _prepare(self, object view, object data, Parsed *found) except -1
    @cython.locals(
        size=cython.int, total=cython.int, target=BytePointer, last=cython.bint,
        covered=cython.ulonglong
    )
    cdef object _cut(self)
    @cython.locals(at=cython.int, length=cython.int, number=cython.int)
    cdef int _write_network(self, byte *target, int total) noexcept
    @cython.locals(at=cython.int, word=cython.uint, sequence=cython.uint)
    cdef unsigned int _write_tcp(self, byte *target, bint last) noexcept
    @cython.locals(field=cython.int, check=cython.uint)
    cdef int _write_checksum(self, byte *target, int count, unsigned long long covered) noexcept

@cython.locals(
    kind=cython.int, offset=cython.int, payload=cython.int, gso_size=cython.int, count=cython.int,
    partial=cython.bint, result=Segments
)
cdef object _segments(
    object packet, object view, object header, object mode, object link, object checksums,
    object max_segments, Parsed *found
)

@cython.locals(base=ConstBytePointer, problem=cython.int, layout=cython.int)
cdef int _find(
    object packet, object view, object header, object link, Parsed *found
) except -1

@cython.locals(reason=cython.int, base=ConstBytePointer, header=cython.int, expected=cython.int)
cdef int locate(int link, const byte *base, int length, Parsed *found) noexcept

cdef int kind_of(int version, int protocol) noexcept

@cython.locals(offset=cython.int)
cdef bint fits(Slot *slot, Parsed *found, int reason) noexcept
