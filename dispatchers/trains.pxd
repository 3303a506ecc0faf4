from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from netstack_gro cimport records
from netstack_gro.dispatchers cimport held
cimport cython


@cython.final
@cython.freelist(128)
cdef class Datagram:
    cdef bytes _owner
    cdef Py_ssize_t _offset
    cdef Py_ssize_t _length

    # The one method that no Python can say: its first argument is a C struct.
    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef char *start = NULL
        if self._owner is not None:
            start = PyBytes_AS_STRING(self._owner) + self._offset
        PyBuffer_FillInfo(buffer, self, start, self._length, 1, flags)


@cython.final
@cython.freelist(16)
cdef class Train:
    cdef bytes _memory
    cdef bytes _name
    cdef bytes _info
    cdef Py_ssize_t _length
    cdef Py_ssize_t _segment
    cdef long long _time
    cdef int _tos

    cdef Py_ssize_t _count(self) noexcept
    @cython.locals(datagram=Datagram)
    cdef object _cut(self, Py_ssize_t start, Py_ssize_t stop)
    @cython.locals(start=cython.Py_ssize_t, stop=cython.Py_ssize_t, datagrams=list)
    cdef list _cut_all(self)

@cython.locals(train=Train)
cdef Train make_train(bytes memory, Py_ssize_t length, Py_ssize_t segment)
