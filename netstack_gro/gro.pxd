from netstack_gro cimport codes, records, wire
from netstack_gro.batch cimport Batch
from netstack_gro.delivery cimport Delivery
from netstack_gro.engine cimport Engine
from netstack_gro.outbox cimport Outbox
cimport cython

cdef int CO_COROUTINE, IDLE, BUSY, CLOSED


@cython.final
cdef class GroDispatcher:
    cdef int _state
    cdef int _capacity
    cdef int _taken
    cdef bint _sink
    cdef Batch _own
    cdef Delivery _delivery
    cdef Engine _engine
    cdef Outbox _outbox
    cdef object _hook
    cdef object _config
    cdef object _limits

    cdef int _made(self) except -1
    cdef int _ready(self) except -1
    cdef int _tell(self) except -1
    @cython.locals(engine=Engine)
    cdef int _apply(self, object limits) except -1
    cdef int _begin(self, Batch batch) except -1
    cdef int _idle(self) except -1
    cdef int _room(self) except -1
    @cython.locals(count=cython.int, start=cython.int, stop=cython.int)
    cdef int _dispatch_batch(self, Batch batch) except -1
    @cython.locals(index=cython.int, count=cython.int)
    cdef int _continue_with(self, Batch batch) except -1
    @cython.locals(
        own=Batch, count=cython.Py_ssize_t, following=cython.Py_ssize_t, delivering=cython.bint,
        listed=cython.bint
    )
    cdef Py_ssize_t _dispatch_iterable(self, object packets) except -1
    @cython.locals(own=Batch)
    cdef int _borrow(self, object packet, Py_ssize_t number) except -1
    cdef int _deliver_own(self) except -1
    @cython.locals(start=cython.int)
    cdef int _run(self) except -1
    @cython.locals(count=cython.int, packets=list)
    cdef int _flush(self) except -1
