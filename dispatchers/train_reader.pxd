from netstack_gro cimport records, wire
from netstack_gro.dispatchers cimport held, native, trains
from netstack_gro.dispatchers.messages cimport MessageVector
from netstack_gro.dispatchers.trains cimport Train
from netstack_gro.wire cimport byte
cimport cython

cdef int SOL_SOCKET, SOL_IP, SOL_UDP, SOL_IPV6, UDP_GRO, IP_TOS, IP_PKTINFO, IPV6_PKTINFO
cdef int IPV6_TCLASS, IN_INFO, IN6_INFO, SCM_TIMESTAMPNS, SCM_TIMESTAMPNS_NEW, SO_RXQ_OVFL
cdef unsigned int MSG_CTRUNC, MSG_TRUNC
cdef long long MASK32, HALF32, SECOND, MAX_SECONDS
cdef int NAME, ABSENT, MALFORMED, MAX_BATCH, MAX_SIZE, MAX_CONTROL, MAX_SLABS


@cython.final
cdef class TrainReader:
    cdef MessageVector _messages
    cdef list _buffers
    cdef list _locks
    cdef list _aside
    cdef bytes _name
    cdef bytes _info
    cdef int _batch
    cdef Py_ssize_t _size
    cdef int _max_slabs
    cdef bint _trains
    cdef int _count
    cdef bint _untaken
    # What the control messages of the message at hand said.
    cdef long long _segment
    cdef int _tos
    cdef long long _time
    cdef Py_ssize_t _info_at
    cdef Py_ssize_t _info_size
    cdef long long _drops
    # Counters.
    cdef unsigned long long _total
    cdef unsigned long long _datagrams
    cdef unsigned long long _bytes
    cdef unsigned long long _truncated
    cdef unsigned long long _control_cut
    cdef unsigned long long _malformed
    cdef unsigned long long _dropped
    cdef unsigned long long _replaced

    @cython.locals(count=cython.int)
    cdef int _receive(self, int descriptor) except? -1
    @cython.locals(index=cython.Py_ssize_t, found=list)
    cdef int _take(self, list taken) except -1
    @cython.locals(
        messages=MessageVector, entry=cython.Py_ssize_t, flags=cython.uint,
        length=cython.longlong, controls=cython.Py_ssize_t, cut=cython.bint,
        segment=cython.longlong, whole=cython.longlong, train=Train, name_length=cython.Py_ssize_t
    )
    cdef int _take_one(self, Py_ssize_t index, list taken) except -1
    @cython.locals(names=wire.BytePointer)
    cdef bytes _shared_name(self, Py_ssize_t at, Py_ssize_t length)
    @cython.locals(controls=wire.BytePointer)
    cdef bytes _shared_info(self, Py_ssize_t at, Py_ssize_t length)
    @cython.locals(
        end=cython.Py_ssize_t, size=cython.Py_ssize_t, level=cython.int, kind=cython.int,
        data=cython.Py_ssize_t
    )
    cdef int _scan(self, const byte *base, Py_ssize_t at, Py_ssize_t used, bint cut) noexcept
    cdef int _read(
        self, const byte *base, int level, int kind, Py_ssize_t data, Py_ssize_t size, bint cut
    ) noexcept
    @cython.locals(found=cython.longlong)
    cdef long long _segment_size(
        self, const byte *base, Py_ssize_t data, Py_ssize_t size, bint cut
    ) noexcept
    cdef int _tos_of(self, const byte *base, Py_ssize_t data, Py_ssize_t size) noexcept
    cdef int _set_time(self, long long seconds, long long nanoseconds) noexcept
    @cython.locals(more=cython.longlong)
    cdef int _saw_drops(self, long long total) noexcept
    @cython.locals(index=cython.Py_ssize_t)
    cdef int _renew(self) except -1
    @cython.locals(place=cython.Py_ssize_t, crowded=cython.bint)
    cdef int _exchange(self, Py_ssize_t index) except -1
    @cython.locals(messages=MessageVector)
    cdef int _aim(self, Py_ssize_t index) except -1
