from netstack_gro cimport codes, records
from netstack_gro.delivery cimport Delivery
from netstack_gro.packet cimport Packet
from netstack_gro.records cimport HeadPointer, SlotPointer
cimport cython

cdef int VERDICTS, REASONS


@cython.final
cdef class Outbox:
    cdef Delivery _delivery
    cdef list _free
    cdef unsigned long long *_verdicts
    cdef unsigned long long *_reasons
    cdef unsigned long long _batches
    cdef unsigned long long _packets_in
    cdef unsigned long long _packets_out
    cdef unsigned long long _bytes_in
    cdef unsigned long long _bytes_out
    cdef unsigned long long _super_packets
    cdef unsigned long long _segments

    @cython.locals(
        free=list, packets=list, packet=Packet, slot=SlotPointer, head=HeadPointer,
        index=cython.int, position=cython.int, delivery=Delivery, inputs=cython.ulonglong,
        bytes_in=cython.ulonglong, bytes_out=cython.ulonglong
    )
    cdef list pack(self, int *out, int count)
    @cython.locals(place=cython.int, delivery=Delivery)
    cdef int _complete(self, Packet packet, int index) except -1
    @cython.locals(free=list, packet=Packet, position=cython.int)
    cdef int take_back(self, int count) except -1
    cdef list _unused(self)
    cdef object stats(self)
