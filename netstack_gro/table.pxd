from netstack_gro cimport headers, records, wire
from netstack_gro.records cimport (
    Bucket, BucketPointer, Head, HeadPointer, Parsed, Slot
)
cimport cython

cdef unsigned int VLAN_KEY, GENERATIONS


@cython.final
cdef class FlowTable:
    cdef Bucket *_buckets
    cdef Head *_heads
    cdef int _layout
    cdef unsigned int _mask
    cdef unsigned int _generation
    cdef unsigned int _position
    cdef unsigned int _digest
    cdef unsigned long long _seed
    cdef unsigned long long _stir
    cdef unsigned long long _last

    cdef int attach(self, Head *heads) noexcept
    @cython.locals(
        head=HeadPointer, bucket=BucketPointer, position=cython.uint, key=cython.uint,
        digest=cython.ulonglong
    )
    cdef int find(self, Slot *slot, Parsed *parsed) noexcept
    @cython.locals(bucket=BucketPointer)
    cdef int enter(self, int number) noexcept
    @cython.locals(position=cython.uint, bucket=BucketPointer)
    cdef int empty(self) noexcept
