/* What records.py does in C beyond what Cython can say. */
#ifndef NETSTACK_GRO_RECORDS_H
#define NETSTACK_GRO_RECORDS_H

#include <Python.h>

/* Whether bytes object `data` has `count` bytes and one reference, the asking variable's, so that it
   can be filled in again, as zip() does with its tuples. Its hash may have been asked for while
   others held it. Where references are not plain counts, or the hash may lie elsewhere: never. */
#if defined(Py_GIL_DISABLED) || PY_VERSION_HEX >= 0x030F0000
static inline int records_reusable(PyObject *data, Py_ssize_t count) {
    (void)data, (void)count;
    return 0;
}
#else
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
static inline int records_reusable(PyObject *data, Py_ssize_t count) {
    if (data == Py_None || Py_REFCNT(data) != 1 || Py_SIZE(data) != count) return 0;
    ((PyBytesObject *)data)->ob_shash = -1;
    return 1;
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#endif

#endif
