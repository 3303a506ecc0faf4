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

    cdef int _prepare(self, object view, object data, Parsed *found) except -1
    @cython.locals(
        size=cython.int, total=cython.int, target=BytePointer, last=cython.bint
    )
    cdef object _cut(self)
    @cython.locals(at=cython.int, size=cython.int, check=cython.uint)
    cdef int _write_network(self, byte *target, int total) noexcept
    @cython.locals(at=cython.int, flags=cython.uint)
    cdef int _write_tcp(self, byte *target, bint last) noexcept
    @cython.locals(
        at=cython.int, count=cython.int, field=cython.int, check=cython.uint,
        covered=cython.ulonglong
    )
    cdef int _write_checksum(self, byte *target, int total) noexcept

@cython.locals(
    kind=cython.int, offset=cython.int, payload=cython.int, size=cython.int, count=cython.int,
    result=Segments
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
