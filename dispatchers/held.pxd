# The C side of held.py: buffers are bytes objects, which nobody can resize.
from cpython.object cimport PyObject

cdef enum:
    COMPILED = 1

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *value) noexcept

cdef inline object lent(object buffer):
    return buffer

cdef inline object locked(object buffer):
    return None

cdef inline void unlock(object lock) noexcept:
    pass

cdef inline bint is_held(object buffer, Py_ssize_t known) noexcept:
    return Py_REFCNT(<PyObject *> buffer) > known
