"""Slabs: how a kept view is noticed, and that what it shows is never overwritten."""

import pytest

from netstack_gro.errors import GroError, PinnedError
from netstack_gro.slabs import SlabPool, is_pinned


@pytest.mark.parametrize("size", [1, 2, 3, 100, 4096, 1 << 20])
def test_a_slab_is_pinned_while_a_view_of_it_exists(size: int) -> None:
    slab = bytearray(b"x" * size)
    before = bytes(slab)
    assert not is_pinned(slab)
    view = memoryview(slab)
    part = view[:1]
    assert is_pinned(slab)
    view.release()
    assert is_pinned(slab)
    part.release()
    assert not is_pinned(slab)
    assert slab == before


def test_a_slab_without_bytes_is_never_pinned() -> None:
    slab = bytearray()
    view = memoryview(slab)
    assert not is_pinned(slab)
    view.release()


def test_a_free_slab_stays_in_use() -> None:
    slab = bytearray(8)
    pool = SlabPool(slab, 2)
    assert pool.renew() is slab
    assert pool.current is slab
    assert pool.replaced == 0


def test_a_pinned_slab_is_set_aside_and_taken_back_when_it_is_free() -> None:
    first = bytearray(8)
    pool = SlabPool(first, 2)
    view = memoryview(first)
    second = pool.renew()
    assert second is pool.current is not first
    assert (len(second), pool.replaced) == (8, 1)
    view.release()
    assert pool.renew() is second
    other = memoryview(second)
    assert pool.renew() is first
    assert pool.replaced == 2
    other.release()


def test_no_more_slabs_are_made_than_allowed() -> None:
    pool = SlabPool(bytearray(8), 3)
    views = []
    for _ in range(2):
        views.append(memoryview(pool.current))
        pool.renew()
    views.append(memoryview(pool.current))
    in_use = pool.current
    for _ in range(3):
        with pytest.raises(PinnedError, match="all 3 slabs"):
            pool.renew()
        assert pool.current is in_use
    views.pop(0).release()
    assert pool.renew() is not in_use
    assert not is_pinned(pool.current)
    views.clear()


def test_a_limit_of_one_refuses_the_first_kept_view() -> None:
    pool = SlabPool(bytearray(8), 1)
    view = memoryview(pool.current)
    with pytest.raises(PinnedError):
        pool.renew()
    view.release()
    pool.renew()


def test_a_pinned_error_is_a_buffer_error_that_says_what_to_do() -> None:
    assert issubclass(PinnedError, BufferError)
    assert issubclass(PinnedError, GroError)
    pool = SlabPool(bytearray(8), 1)
    view = memoryview(pool.current)
    with pytest.raises(PinnedError, match="detach"):
        pool.renew()
    view.release()


def test_a_slab_that_an_interruption_left_shorter_is_replaced() -> None:
    pool = SlabPool(bytearray(64), limit=4)
    pool.current.pop()
    assert len(pool.renew()) == 64
    assert pool.replaced == 1
