# The C side of records.py: the same records as structs in arrays that are allocated once.
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdlib cimport calloc, free
from netstack_gro.wire cimport byte


cdef extern from "_records.h":
    bint reusable "records_reusable"(object data, Py_ssize_t count) noexcept

cdef extern from "Python.h":  # of borrowed references, which Cython would count up and down
    PyObject *_borrowed "PyList_GET_ITEM"(list packets, Py_ssize_t index) noexcept
    bint _is_bytes "PyBytes_CheckExact"(PyObject *packet) noexcept
    Py_ssize_t _bytes_size "PyBytes_GET_SIZE"(PyObject *packet) noexcept
    char *_bytes_at "PyBytes_AS_STRING"(PyObject *packet) noexcept


cdef enum:
    AGGREGATED = 1
    VNET = 2
    NEEDS_CSUM = 4


cdef struct Slot:
    const byte *base
    Py_ssize_t offset
    long long timestamp_ns
    int length
    int wire_length
    unsigned int interface
    unsigned int vlan
    unsigned char checksum
    unsigned char flags
    unsigned char gso_type
    unsigned char verdict
    unsigned short gso_size
    unsigned short csum_start
    unsigned short csum_offset
    unsigned short header_length
    int head
    int following


cdef struct Head:
    const byte *base
    Py_ssize_t offset
    unsigned long long even_sum
    unsigned long long odd_sum
    int first
    int last
    int network
    int transport
    int header_length
    int payload
    int limit
    int count
    int count_limit
    int gso_size
    int space
    unsigned int barrier
    unsigned int sequence
    unsigned int interface
    unsigned int vlan
    unsigned int ip_sum
    unsigned int transport_sum
    unsigned short ip_id
    unsigned char version
    unsigned char protocol
    unsigned char flags
    unsigned char checksum
    unsigned char given
    unsigned char id_mode
    unsigned char closed
    bint open
    bint ready
    bint verified


cdef struct Parsed:
    int network
    int transport
    int header_length
    int payload
    int length
    int version
    int protocol
    int flags
    bint readable
    bint barrier
    bint refused


cdef struct Bucket:
    unsigned int generation
    unsigned int digest
    int head


cdef inline void *_zeroed(size_t count, size_t size) except NULL:
    cdef void *memory = calloc(count, size)
    if memory == NULL:
        raise MemoryError()
    return memory


ctypedef Slot *SlotPointer
ctypedef Head *HeadPointer
ctypedef Parsed *ParsedPointer
ctypedef Bucket *BucketPointer


cdef inline Slot *slots(Py_ssize_t count) except NULL:
    return <Slot *> _zeroed(count, sizeof(Slot))

cdef inline Head *heads(Py_ssize_t count) except NULL:
    return <Head *> _zeroed(count, sizeof(Head))

cdef inline Parsed *parsed() except NULL:
    return <Parsed *> _zeroed(1, sizeof(Parsed))

cdef inline Bucket *buckets(Py_ssize_t count) except NULL:
    return <Bucket *> _zeroed(count, sizeof(Bucket))

cdef inline int *indices(Py_ssize_t count) except NULL:
    return <int *> _zeroed(count, sizeof(int))

cdef inline unsigned long long *counters(Py_ssize_t count) except NULL:
    return <unsigned long long *> _zeroed(count, sizeof(unsigned long long))

cdef inline Slot *slot_at(Slot *records, Py_ssize_t index) noexcept:
    return &records[index]

cdef inline Head *head_at(Head *records, Py_ssize_t index) noexcept:
    return &records[index]

cdef inline Head *no_head() noexcept:
    return NULL

cdef inline Bucket *bucket_at(Bucket *records, Py_ssize_t index) noexcept:
    return &records[index]

cdef inline void release(void *records) noexcept:
    free(records)

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view) noexcept
    Py_ssize_t Py_REFCNT(PyObject *value) noexcept

cdef inline const byte *bytes_base(object data) noexcept:
    return <const byte *> PyBytes_AS_STRING(data)

cdef inline bint lend(Slot *slot, list packets, Py_ssize_t index, Py_ssize_t longest) noexcept:
    cdef PyObject *packet = _borrowed(packets, index)
    if not _is_bytes(packet) or _bytes_size(packet) > longest:
        return False
    slot.base = <const byte *> _bytes_at(packet)
    slot.offset = 0
    slot.length = <int> _bytes_size(packet)
    return True

cdef inline byte *view_base(object data, object view) noexcept:
    return <byte *> PyMemoryView_GET_BUFFER(view).buf

cdef inline byte *writable(const byte *base) noexcept:
    return <byte *> base

cdef inline void copy_slot(Slot *to, Slot *source) noexcept:
    to[0] = source[0]

cdef inline byte *space_base(object space) noexcept:
    return <byte *> PyByteArray_AS_STRING(space)

cdef inline object blank(Py_ssize_t count):
    return PyBytes_FromStringAndSize(NULL, count)

cdef inline byte *blank_base(object data) noexcept:
    return <byte *> PyBytes_AS_STRING(data)

cdef inline object finished(object data):
    return data

cdef inline bint kept(object value, Py_ssize_t known) noexcept:
    return Py_REFCNT(<PyObject *> value) > known

cdef inline object piece(const byte *base, Py_ssize_t at, Py_ssize_t count):
    return PyBytes_FromStringAndSize(<const char *> base + at, count)

cdef inline void seal(object kind, object zeros, object nones) noexcept:
    pass

cdef inline void forget_slot(Slot *slot) noexcept:
    pass

cdef inline void forget_head(Head *head) noexcept:
    pass
