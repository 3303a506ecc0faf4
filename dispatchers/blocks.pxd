from netstack_gro cimport codes, records
from netstack_gro.batch cimport Batch
from netstack_gro.dispatchers cimport frames, native, ordered
from netstack_gro.records cimport Slot, SlotPointer
from netstack_gro.wire cimport BytePointer, ConstBytePointer, byte
cimport cython

cdef int BLOCK_HEADER, BLOCK_STATUS, NUM_PKTS, OFFSET_TO_FIRST_PKT, BLK_LEN
cdef int FRAME_HEADER, NEXT_OFFSET, SEC, NSEC, SNAPLEN, LEN, STATUS, MAC, NET, VLAN_TCI, VLAN_TPID
cdef int STATUS_KERNEL, STATUS_USER, CSUM_NOT_READY, VLAN_VALID, VLAN_TPID_VALID, CSUM_VALID
cdef int DOT1Q, GSO_TCP, VNET_SIZE
cdef long long SECOND_NS, LONGEST


@cython.locals(base=ConstBytePointer)
cpdef bint is_ready(object header) except -1

@cython.locals(base=BytePointer)
cpdef int give_back(object header) except -1


@cython.final
cdef class BlockReader:
    cdef unsigned int _interface
    cdef int _vnet
    cdef long long _mtu
    cdef long long _at
    cdef long long _end
    cdef long long _left
    cdef long long _truncated
    cdef long long _damaged

    @cython.locals(base=ConstBytePointer)
    cpdef bint open(self, Batch batch) except -1
    @cython.locals(
        base=ConstBytePointer, at=cython.longlong, start=cython.longlong, size=cython.longlong,
        slot=SlotPointer
    )
    cpdef int fill(self, Batch batch) except -1
    @cython.locals(
        status=cython.uint, length=cython.longlong, kind=cython.uint, header=cython.int
    )
    cdef int _describe(self, Slot *slot, const byte *base, Py_ssize_t at) noexcept
    cdef int _give_up(self, Batch batch) noexcept
