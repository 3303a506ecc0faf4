from netstack_gro cimport codes, gso, records
from netstack_gro.batch cimport Batch
from netstack_gro.delivery cimport Delivery
from netstack_gro.records cimport HeadPointer, ParsedPointer, SlotPointer
cimport cython


@cython.locals(head=HeadPointer, slot=SlotPointer)
cdef object merged(Delivery delivery, Batch batch, int index)

cdef object virtio_of(Delivery delivery, HeadPointer head)

@cython.locals(
    slot=SlotPointer, parsed=ParsedPointer, state=cython.int, reason=cython.int,
    fits=cython.bint, network=cython.int, transport=cython.int, header_length=cython.int,
    payload=cython.int, version=cython.int, protocol=cython.int, ip_length=cython.int,
    closed=cython.int, start=cython.int, offset=cython.int, segments=cython.int
)
cdef object lone(Delivery delivery, Batch batch, int index, bint completed)

@cython.locals(slot=SlotPointer)
cdef object _timestamps(Batch batch, int index)
