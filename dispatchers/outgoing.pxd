from netstack_gro cimport records, wire
from netstack_gro.dispatchers cimport held, native
from netstack_gro.dispatchers.messages cimport MessageVector
from netstack_gro.dispatchers.trains cimport Datagram
from netstack_gro.wire cimport byte
cimport cython

cdef int MSG_DONTWAIT, NAME, CONTROL, MAX_SEGMENTS, MAX_RUNS, MAX_LENGTH
cdef long long MAX_ROOM
cdef int OFFSET, LENGTH, SEGMENT, COUNT, BARE, FIELDS


@cython.final
cdef class Outgoing:
    cdef MessageVector _messages
    cdef MessageVector _pieces
    cdef int *_fields
    cdef object _slab
    cdef byte *_base
    cdef list _names
    cdef list _controls
    # What is staged next goes there.
    cdef bytes _name
    cdef bytes _control
    cdef int _bare
    cdef int _max_segments
    cdef int _max_bytes
    cdef bint _open
    # What is staged, and how far it was sent.
    cdef Py_ssize_t _room
    cdef Py_ssize_t _used
    cdef int _limit
    cdef int _runs
    cdef int _first
    cdef int _done
    cdef bint _cut_first
    cdef bint _cut_all
    cdef bint _without_tos
    cdef bint _never_equal_tail
    # Counters.
    cdef unsigned long long _sent
    cdef unsigned long long _sent_bytes
    cdef unsigned long long _sent_trains
    cdef unsigned long long _given
    # Messages that the kernel was given, and where all this stood before.
    cdef int _flying
    cdef bint _flight_pieces
    cdef unsigned long long _flight_sent

    cdef int _need_one(self) except -1
    cdef int _start(self) except -1
    @cython.locals(index=cython.Py_ssize_t, staged=cython.bint, owned=Datagram)
    cdef Py_ssize_t _stage(self, list datagrams, Py_ssize_t start) except -1
    @cython.locals(run=cython.int)
    cdef bint _append(self, const byte *base, Py_ssize_t at, Py_ssize_t size) except -1
    @cython.locals(run=cython.int)
    cdef int _begin(self, Py_ssize_t length, Py_ssize_t segment, Py_ssize_t count) except -1
    @cython.locals(
        base=wire.ConstBytePointer, most=cython.Py_ssize_t, at=cython.Py_ssize_t,
        count=cython.Py_ssize_t, length=cython.Py_ssize_t
    )
    cdef Py_ssize_t _stage_train(
        self, object data, object view, Py_ssize_t size, Py_ssize_t segment, Py_ssize_t start
    ) except -1
    @cython.locals(at=cython.int, count=cython.int, equal=cython.bint)
    cdef bint _must_cut(self, int run) noexcept
    cdef int _next(self) noexcept
    @cython.locals(stop=cython.int)
    cdef int _send(self, int descriptor) except? -1
    @cython.locals(run=cython.int, pieces=cython.int, place=cython.int)
    cdef int _send_pieces(self, int descriptor) except? -1
    @cython.locals(at=cython.Py_ssize_t, answer=cython.int)
    cdef int _launch(
        self, int descriptor, MessageVector messages, Py_ssize_t place, int count
    ) noexcept
    @cython.locals(
        run=cython.int, done=cython.int, sent=cython.ulonglong, octets=cython.ulonglong,
        trains=cython.ulonglong
    )
    cdef int _settle(self, int took) noexcept
    @cython.locals(segment=cython.int)
    cdef int _length(self, int run, int done) noexcept
    cdef int _advance(self, int count) noexcept
    @cython.locals(
        fields=cython.int, segment=cython.int, start=cython.Py_ssize_t, length=cython.Py_ssize_t,
        control=bytes, used=cython.Py_ssize_t
    )
    cdef int _write(
        self, MessageVector messages, Py_ssize_t place, int run, int done, int count
    ) except -1
