from netstack_gro cimport codes, records, wire
from netstack_gro.batch cimport Batch
from netstack_gro.dispatchers cimport frames, native
from netstack_gro.records cimport Slot, SlotPointer
from netstack_gro.wire cimport byte
cimport cython

cdef int SOL_SOCKET, SOL_PACKET, PACKET_AUXDATA, AUXDATA, SCM_TIMESTAMPNS
cdef unsigned int TP_STATUS_CSUMNOTREADY, TP_STATUS_VLAN_VALID, TP_STATUS_VLAN_TPID_VALID
cdef unsigned int TP_STATUS_CSUM_VALID, TP_STATUS_GSO_TCP, ETH_P_8021Q
cdef int SOL_UDP, UDP_SEGMENT, MSG_DONTWAIT, MSG_TRUNC, AGAIN, INTERRUPTED
cdef unsigned int UNTOUCHED
cdef int VNET_SIZE, MAX_COUNT, MAX_STRIDE, MAX_CONTROL
cdef long long SECOND


@cython.final
cdef class MessageVector:
    cdef list _memory
    cdef byte *_vector
    cdef byte *_iovecs
    cdef byte *_controls
    cdef byte *_names
    cdef int _count
    cdef int _used
    cdef bint _flying
    cdef Py_ssize_t _start
    cdef Py_ssize_t _stride
    cdef Py_ssize_t _control_size
    cdef Py_ssize_t _name_size

    @cython.locals(entry=cython.Py_ssize_t, iovec=cython.Py_ssize_t)
    cdef int _lay_out(self, Py_ssize_t index) noexcept
    @cython.locals(index=cython.Py_ssize_t, start=cython.Py_ssize_t)
    cdef int _aim(self, byte *base) noexcept
    @cython.locals(
        index=cython.int, entry=cython.Py_ssize_t, count=cython.int, arrived=cython.int
    )
    cdef int _receive(self, int descriptor, int flags) noexcept
    @cython.locals(done=cython.int)
    cdef int _answered(self, Py_ssize_t place, int count) noexcept
    @cython.locals(to=native.BytePointer)
    cdef int _address(self, Py_ssize_t place, bytes name) except -1
    @cython.locals(controls=native.BytePointer, at=cython.Py_ssize_t)
    cdef int _control(
        self, Py_ssize_t place, bytes control, Py_ssize_t used, int segment
    ) except -1
    cdef int _carry(self, Py_ssize_t place, Py_ssize_t address, Py_ssize_t length) noexcept


@cython.final
cdef class PacketMessages:
    cdef MessageVector _messages
    cdef int _capacity
    cdef Py_ssize_t _stride
    cdef int _vnet
    cdef int _largest
    cdef unsigned int _interface
    cdef bint _trust
    cdef bint _ends
    cdef unsigned long long _runts
    cdef unsigned long long _truncated

    cdef int _aim(self, Batch batch) except -1
    cdef int _check(self, Batch batch) except -1
    @cython.locals(
        messages=MessageVector, base=native.ConstPointer, slot=SlotPointer, count=cython.int,
        index=cython.int, entry=cython.Py_ssize_t, length=cython.Py_ssize_t, at=cython.Py_ssize_t,
        got=cython.Py_ssize_t, used=cython.Py_ssize_t, empty=cython.int
    )
    cdef int _fill(self, int descriptor, Batch batch) noexcept
    @cython.locals(
        controls=native.BytePointer, end=cython.Py_ssize_t, size=cython.Py_ssize_t,
        level=cython.int, kind=cython.int, data=cython.Py_ssize_t, word=cython.Py_ssize_t
    )
    cdef int _read_controls(self, Slot *slot, Py_ssize_t at, Py_ssize_t used) noexcept
    @cython.locals(controls=native.BytePointer, status=cython.uint, protocol=cython.uint)
    cdef int _read_auxdata(self, Slot *slot, Py_ssize_t at) noexcept
