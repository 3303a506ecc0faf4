"""Batch: what it takes, what it refuses and how, and that it never leaves memory behind."""

import array
import copy
import ctypes
import mmap
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.errors import EngineStateError, PinnedError
from netstack_gro.virtio import DATA_VALID, NEEDS_CSUM, GsoType, VirtioHeader
from tests.builders import tcp4
from tests.engines import Engine
from tests.flushes import Recorder

PACKET = tcp4(bytes(range(100)), ident=3)
OTHER = tcp4(b"another", sport=2)


def delivered(engine: Engine, batch: Any) -> Recorder:
    hook = Recorder()
    engine.GroDispatcher(hook).dispatch(batch)
    return hook


# --- making one ----------------------------------------------------------------------------------


def test_a_new_batch_is_empty(engine: Engine) -> None:
    batch = engine.Batch()
    assert (len(batch), batch.capacity, batch.slab, batch.slabs_replaced) == (0, 1024, None, 0)
    assert not batch


@pytest.mark.parametrize("name", ["capacity", "max_slabs"])
def test_a_limit_out_of_range_is_named(engine: Engine, name: str) -> None:
    highest = {"capacity": 65536, "max_slabs": 1024}[name]
    engine.Batch(**{name: 1})
    engine.Batch(**{name: highest})
    for number in (0, -1, highest + 1, 1 << 70):
        with pytest.raises(ValueError, match=f"{name}: {number} "):
            engine.Batch(**{name: number})
    for wrong in (None, "8", 8.0, True):
        with pytest.raises(TypeError, match=f"{name}: "):
            engine.Batch(**{name: wrong})


@pytest.mark.parametrize("wrong", [5, "slab", None.__class__, [b"x"]])
def test_a_slab_that_is_no_buffer_is_refused(engine: Engine, wrong: Any) -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        engine.Batch(wrong)


def test_a_slab_with_gaps_is_refused(engine: Engine) -> None:
    with pytest.raises(TypeError, match="contiguous"):
        engine.Batch(memoryview(bytes(100))[::2])


def test_a_batch_is_initialised_once(engine: Engine) -> None:
    batch = engine.Batch(capacity=2)
    batch.append(PACKET)
    with pytest.raises(EngineStateError, match="once"):
        batch.__init__(capacity=9)
    assert (batch.capacity, len(batch)) == (2, 1)


@pytest.mark.parametrize("make", ["bytes", "bytearray", "mmap", "memoryview", "ctypes", "array"])
def test_a_slab_is_any_contiguous_memory(engine: Engine, make: str) -> None:
    data = b"??" + PACKET + b"!" + OTHER
    data += bytes(len(data) % 2)  # an array of 16-bit numbers must fit
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    slab = {
        "bytes": data,
        "bytearray": bytearray(data),
        "mmap": mapped,
        "memoryview": memoryview(b"--" + data)[2:],
        "ctypes": (ctypes.c_ubyte * len(data)).from_buffer_copy(data),
        "array": array.array("H", data),
    }[make]
    batch = engine.Batch(slab, capacity=4)
    assert batch.slab is slab
    batch.add(2, len(PACKET))
    batch.add(3 + len(PACKET), len(OTHER))
    assert delivered(engine, batch).data == [PACKET, OTHER]


# --- taking packets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: memoryview(bytearray(data)),
        lambda data: memoryview(b"?" + data)[1:],
        lambda data: (ctypes.c_ubyte * len(data)).from_buffer_copy(data),
        lambda data: ctypes.create_string_buffer(data, len(data)),
        lambda data: array.array("H", data),
        lambda data: memoryview(data).cast("B", (2, len(data) // 2)),
    ],
)
def test_a_packet_is_any_contiguous_buffer(engine: Engine, kind: Any) -> None:
    batch = engine.Batch(capacity=2)
    batch.append(kind(PACKET))
    batch.append(kind(PACKET))
    assert delivered(engine, batch).data == [PACKET, PACKET]


def test_a_packet_of_no_bytes_is_a_packet(engine: Engine) -> None:
    batch = engine.Batch(bytearray(4))
    batch.append(b"")
    batch.append(array.array("H"))
    batch.add(4, 0)
    batch.add(0, 0)
    hook = delivered(engine, batch)
    assert hook.data == [b""] * 4
    assert hook.verdicts == ["IP_TRUNCATED"] * 4


@pytest.mark.parametrize("wrong", [None, 5, "text", [1, 2], object()])
def test_what_is_no_buffer_is_refused_by_its_type(engine: Engine, wrong: Any) -> None:
    batch = engine.Batch()
    with pytest.raises(TypeError, match=type(wrong).__name__):
        batch.append(wrong)
    assert len(batch) == 0


def test_a_buffer_with_gaps_is_refused(engine: Engine) -> None:
    batch = engine.Batch()
    with pytest.raises(TypeError, match="contiguous"):
        batch.append(memoryview(PACKET)[::2])
    assert len(batch) == 0


@pytest.mark.parametrize(
    ("offset", "length", "name"),
    [
        (-1, 5, "offset"),
        (101, 0, "offset"),
        (0, 101, "length"),
        (100, 1, "length"),
        (0, -1, "length"),
        (1 << 70, 0, "offset"),
        (0, 1 << 70, "length"),
    ],
)
def test_a_range_outside_the_slab_is_refused(
    engine: Engine, offset: int, length: int, name: str
) -> None:
    batch = engine.Batch(bytearray(100))
    with pytest.raises(ValueError, match=f"{name}: "):
        batch.add(offset, length)
    assert len(batch) == 0
    batch.add(0, 100)
    batch.add(100, 0)


@pytest.mark.parametrize("wrong", [None, "1", 1.0, True])
def test_a_range_is_of_integers(engine: Engine, wrong: Any) -> None:
    batch = engine.Batch(bytearray(100))
    with pytest.raises(TypeError, match="offset: "):
        batch.add(wrong, 1)
    with pytest.raises(TypeError, match="length: "):
        batch.add(1, wrong)
    assert len(batch) == 0


def test_without_a_slab_there_is_no_range(engine: Engine) -> None:
    batch = engine.Batch()
    with pytest.raises(ValueError, match="no slab"):
        batch.add(0, 1)


def test_a_full_batch_refuses_more(engine: Engine) -> None:
    batch = engine.Batch(bytearray(9), capacity=2)
    batch.append(PACKET)
    batch.add(0, 1)
    takes: list[Callable[[], None]] = [lambda: batch.append(PACKET), lambda: batch.add(0, 1)]
    for take in takes:
        with pytest.raises(ValueError, match="full: 2"):
            take()
    assert len(batch) == 2
    batch.clear()
    assert len(batch) == 0
    batch.append(PACKET)


# --- metadata ------------------------------------------------------------------------------------

OUT_OF_RANGE: dict[str, list[Any]] = {
    "wire_length": [(1 << 30) + 1, -1, 1 << 70],
    "timestamp_ns": [1 << 63, -(1 << 63) - 1],
    "interface": [-1, 1 << 32],
    "vlan": [-1, 1 << 16],
}
OF_ANOTHER_TYPE: dict[str, list[Any]] = {
    "wire_length": ["9", 9.5, True],
    "timestamp_ns": ["9", 9.5, True],
    "interface": ["9", 9.5, True, b"eth0"],
    "vlan": ["9", 9.5, True],
    "checksum": [1, "verified", True, GsoType.NONE],
    "virtio": [b"\0" * 10, (0, 0), 1],
    "aggregated": [0, 1, None, "no"],
}


@pytest.fixture(params=["append", "add", "enqueue"])
def take(request: pytest.FixtureRequest, engine: Engine) -> Any:
    """The three ways in, and how many packets are in."""
    batch = engine.Batch(bytearray(PACKET), capacity=4)
    gro = engine.GroDispatcher(Recorder())
    if request.param == "append":
        return lambda **meta: batch.append(PACKET, **meta), lambda: len(batch)
    if request.param == "add":
        return lambda **meta: batch.add(0, len(PACKET), **meta), lambda: len(batch)
    return lambda **meta: gro.enqueue(PACKET, **meta), lambda: gro.pending


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_metadata_out_of_range_is_named_and_nothing_taken(take: Any, name: str) -> None:
    put, count = take
    for value in OUT_OF_RANGE[name]:
        with pytest.raises(ValueError, match=f"^{name}: {value} "):
            put(**{name: value})
        assert count() == 0


@pytest.mark.parametrize("name", OF_ANOTHER_TYPE)
def test_metadata_of_another_type_is_named_and_nothing_taken(take: Any, name: str) -> None:
    put, count = take
    for value in OF_ANOTHER_TYPE[name]:
        with pytest.raises(TypeError, match=f"^{name}: "):
            put(**{name: value})
        assert count() == 0


def test_a_tag_protocol_is_checked_with_its_tag(take: Any) -> None:
    put, count = take
    for wrong in (0, 65536, -1):
        with pytest.raises(ValueError, match="vlan_tpid"):
            put(vlan=1, vlan_tpid=wrong)
    with pytest.raises(TypeError, match="vlan_tpid"):
        put(vlan=1, vlan_tpid="0x8100")
    assert count() == 0


def test_metadata_are_keywords_only(engine: Engine) -> None:
    batch = engine.Batch(bytearray(9))
    with pytest.raises(TypeError):
        batch.append(PACKET, 200)
    with pytest.raises(TypeError):
        batch.add(0, 1, 200)
    with pytest.raises(TypeError):
        batch.append(PACKET, colour="red")
    assert len(batch) == 0


@pytest.mark.parametrize("way", ["append", "add", "enqueue"])
def test_metadata_come_back_with_the_packet(engine: Engine, way: str) -> None:
    extremes = [
        {"timestamp_ns": (1 << 63) - 1, "interface": (1 << 32) - 1, "vlan": 0xFFFF},
        {"timestamp_ns": -(1 << 63), "interface": 0, "vlan": 0, "vlan_tpid": 1},
        {"wire_length": 1 << 30, "vlan": 5, "vlan_tpid": 0xFFFF},
    ]
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    batch = engine.Batch(PACKET)
    for meta in extremes:
        if way == "append":
            batch.append(PACKET, **meta)
        elif way == "add":
            batch.add(0, len(PACKET), **meta)
        else:
            gro.enqueue(PACKET, **meta)
    gro.dispatch(batch)
    for packet, meta in zip(hook.given, extremes, strict=True):
        expected = {"timestamp_ns": 0, "interface": 0, "vlan_tpid": 0x8100, **meta}
        expected.setdefault("wire_length", len(PACKET))
        assert {name: packet.said[name] for name in expected} == expected


def test_metadata_of_an_earlier_packet_do_not_stay_behind(engine: Engine) -> None:
    batch = engine.Batch(capacity=2)
    described = VirtioHeader(NEEDS_CSUM, GsoType.TCPV4, 40, 50, 20, 16)
    batch.append(PACKET, wire_length=999, vlan=7, interface=3, virtio=described, timestamp_ns=4)
    batch.append(PACKET, checksum=ChecksumState.PARTIAL, aggregated=True)
    delivered(engine, batch)
    batch.clear()
    batch.append(PACKET)
    batch.append(OTHER)
    plain = engine.Batch(capacity=2)
    plain.append(PACKET)
    plain.append(OTHER)
    assert delivered(engine, batch).given == delivered(engine, plain).given


@pytest.mark.parametrize(
    ("virtio", "checksum", "state"),
    [
        (None, None, ChecksumState.UNKNOWN),
        (VirtioHeader(), None, ChecksumState.UNKNOWN),
        (VirtioHeader(DATA_VALID), None, ChecksumState.VERIFIED),
        (VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 16), None, ChecksumState.PARTIAL),
        (VirtioHeader(NEEDS_CSUM | DATA_VALID, 0, 0, 0, 20, 16), None, ChecksumState.PARTIAL),
        (VirtioHeader(DATA_VALID), ChecksumState.UNKNOWN, ChecksumState.UNKNOWN),
        (None, ChecksumState.PARTIAL, ChecksumState.PARTIAL),
        (None, ChecksumState.VERIFIED, ChecksumState.VERIFIED),
    ],
)
def test_a_checksum_state_is_the_packet_s_own_or_that_of_its_vnet_header(
    engine: Engine,
    virtio: VirtioHeader | None,
    checksum: ChecksumState | None,
    state: ChecksumState,
) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook, GroConfig(delivered_checksums="partial"))
    gro.enqueue(
        tcp4(b"x", partial=state is ChecksumState.PARTIAL), virtio=virtio, checksum=checksum
    )
    gro.flush()
    assert hook.given[0].checksum is state


# --- misuse --------------------------------------------------------------------------------------


class Meddler:
    """An integer whose reading does something else first."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def __index__(self) -> int:
        self.act()
        return 7


def test_a_batch_cannot_be_cleared_from_within_an_append(engine: Engine) -> None:
    """Reading metadata runs the caller's code, which must not leave a packet without memory."""
    batch = engine.Batch(capacity=4)
    held = bytearray(b"first" * 10)
    batch.append(held)
    with pytest.raises(EngineStateError):
        batch.append(b"second", interface=Meddler(batch.clear))
    assert delivered(engine, batch).data == [bytes(held)]


def test_a_batch_cannot_be_appended_to_from_within_an_append(engine: Engine) -> None:
    batch = engine.Batch(capacity=4)
    with pytest.raises(EngineStateError):
        batch.append(b"outer", interface=Meddler(lambda: batch.append(b"inner")))
    assert len(batch) == 0
    batch.append(b"after")
    assert delivered(engine, batch).data == [b"after"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="buffers in Python came with PEP 688")
def test_a_batch_cannot_be_cleared_by_a_buffer_that_it_borrows(engine: Engine) -> None:
    class Meddling:
        def __buffer__(self, flags: int) -> memoryview:
            batch.clear()
            return memoryview(b"second")

    batch = engine.Batch(capacity=4)
    batch.append(bytearray(b"first"))
    with pytest.raises(EngineStateError):
        batch.append(Meddling())
    assert delivered(engine, batch).data == [b"first"]


def test_a_batch_is_not_pickled_or_copied(engine: Engine) -> None:
    batch = engine.Batch(bytearray(4))
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle 'Batch'"):
            make(batch)


def test_properties_are_read_only_and_no_attribute_can_be_added(engine: Engine) -> None:
    batch = engine.Batch()
    for name in ("capacity", "slab", "slabs_replaced", "colour"):
        with pytest.raises(AttributeError):
            setattr(batch, name, 1)


# --- memory --------------------------------------------------------------------------------------


def test_a_slab_is_locked_for_as_long_as_the_batch_lives(engine: Engine) -> None:
    slab = bytearray(8)
    batch = engine.Batch(slab)
    with pytest.raises(BufferError):
        slab.append(1)
    del batch
    slab.append(1)


def test_an_engine_does_not_keep_a_batch_that_it_has_dispatched(engine: Engine) -> None:
    slab = bytearray(PACKET + OTHER)
    batch = engine.Batch(slab)
    batch.add(0, len(PACKET))
    batch.add(len(PACKET), len(OTHER))
    gro = engine.GroDispatcher(Recorder())
    gro.dispatch(batch)
    del batch
    slab.append(1)
    assert gro.pending == 0


def test_borrowed_buffers_are_given_back_by_clear(engine: Engine) -> None:
    batch = engine.Batch(capacity=8)
    data, writable = bytes(bytearray(PACKET)), bytearray(PACKET)
    before = sys.getrefcount(data)
    batch.append(data)
    batch.append(writable)
    assert sys.getrefcount(data) > before
    with pytest.raises(BufferError):
        writable.clear()
    batch.clear()
    assert sys.getrefcount(data) == before
    writable.clear()


def test_a_refused_packet_is_not_kept(engine: Engine) -> None:
    batch = engine.Batch(capacity=8)
    writable = bytearray(PACKET)
    with pytest.raises(ValueError, match="interface"):
        batch.append(writable, interface=-1)
    writable.clear()


def test_a_batch_is_used_again_after_it_was_dispatched(engine: Engine) -> None:
    batch = engine.Batch(capacity=4)
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    for _ in range(3):
        batch.append(PACKET)
        batch.append(OTHER)
        assert gro.dispatch(batch) == 2
        assert gro.dispatch(batch) == 2
        assert len(batch) == 2
        batch.clear()
    assert gro.dispatch(batch) == 0
    assert hook.data == [PACKET, OTHER] * 6


# --- recycle -------------------------------------------------------------------------------------


def slab_batch(engine: Engine, **how: int) -> Any:
    batch = engine.Batch(bytearray(PACKET + OTHER), capacity=4, **how)
    batch.add(0, len(PACKET))
    batch.add(len(PACKET), len(OTHER))
    return batch


def test_a_free_slab_is_recycled_in_place(engine: Engine) -> None:
    batch = slab_batch(engine)
    slab = batch.slab
    delivered(engine, batch)
    assert batch.recycle() is False
    assert batch.slab is slab
    assert (len(batch), batch.slabs_replaced) == (0, 0)
    slab[: len(OTHER)] = OTHER
    batch.add(0, len(OTHER))
    assert delivered(engine, batch).data == [OTHER]


def test_a_slab_that_a_kept_view_shows_is_set_aside(engine: Engine) -> None:
    batch = slab_batch(engine)
    first = batch.slab
    kept: list[memoryview] = []
    engine.GroDispatcher(lambda packets: kept.extend(packets[0].buffers())).dispatch(batch)
    assert batch.recycle() is True
    assert batch.slab is not first
    assert (len(batch.slab), len(batch), batch.slabs_replaced) == (len(first), 0, 1)
    batch.slab[:] = b"\xff" * len(first)
    batch.add(0, len(first))
    assert delivered(engine, batch).data == [b"\xff" * len(first)]
    assert bytes(kept[0]) == PACKET
    kept.clear()
    assert batch.recycle() is False


def test_pinned_slabs_are_limited_and_an_error_leaves_the_batch_in_order(engine: Engine) -> None:
    batch = slab_batch(engine, max_slabs=1)
    kept: list[memoryview] = []
    engine.GroDispatcher(lambda packets: kept.extend(packets[0].buffers())).dispatch(batch)
    for _ in range(3):
        with pytest.raises(PinnedError):
            batch.recycle()
        assert len(batch) == 0
    assert bytes(kept[0]) == PACKET
    kept.clear()
    assert batch.recycle() is False
    batch.add(0, len(PACKET))
    assert delivered(engine, batch).data == [PACKET]


@pytest.mark.parametrize("slab", [None, bytes(8), memoryview(bytearray(8))])
def test_a_slab_of_another_kind_is_its_owner_s_to_watch(engine: Engine, slab: Any) -> None:
    batch = engine.Batch(slab)
    batch.append(PACKET)
    assert batch.recycle() is False
    assert batch.slab is slab
    assert len(batch) == 0
