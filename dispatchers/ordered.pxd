# The C side of ordered.py.
from netstack_gro.wire cimport byte

cdef extern from "_ordered.h":
    unsigned int load32 "ngo_load32"(const byte *base, Py_ssize_t at) noexcept
    void store32 "ngo_store32"(byte *base, Py_ssize_t at, unsigned int value) noexcept
