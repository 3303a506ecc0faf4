from netstack_gro cimport records
from netstack_gro.records cimport Slot, SlotPointer
from netstack_gro.wire cimport byte
cimport cython

cdef Py_ssize_t _LONGEST

@cython.final
cdef class Batch:
    cdef Slot *_slots
    cdef int _count
    cdef int _limit
    cdef int _max_slabs
    cdef bint _busy
    cdef const byte *_base
    cdef Py_ssize_t _size
    cdef object _slab
    cdef object _view
    cdef object _pool
    cdef list _owners
    cdef list _held

    @cython.locals(slot=SlotPointer, size=cython.Py_ssize_t)
    cdef int _borrow(self, object packet) except -1
    @cython.locals(slot=SlotPointer, stop=cython.int, count=cython.int, held=list)
    cdef Py_ssize_t _borrow_list(self, list packets, Py_ssize_t start) except -1
    cdef int _store(
        self, object packet, object wire_length, object timestamp_ns, object interface,
        object checksum, object vlan, object vlan_tpid, object virtio, object aggregated
    ) except -1
    cdef int _attach(self, object slab) except -1
    cdef int _exchange(self, object slab) except -1
    @cython.locals(slot=SlotPointer)
    cdef Slot *_place(self, Py_ssize_t offset, int length) noexcept
    @cython.locals(count=cython.int, index=cython.int, held=cython.int, owners=list)
    cdef int _drop(self) except -1
    cdef int _adopt(self, Batch other, int index) except -1
    cdef int _forget_list(self) except -1
    cdef object _owner(self, int index)
    @cython.locals(slot=SlotPointer)
    cdef object _piece(self, int index, int start, int stop)
    cdef int _plain(self, Slot *slot) noexcept
    @cython.locals(flags=cython.int)
    cdef int _describe(
        self, Slot *slot, object wire_length, object timestamp_ns, object interface,
        object checksum, object vlan, object vlan_tpid, object virtio, object aggregated
    ) except -1
