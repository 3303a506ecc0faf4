"""The dispatchers' hot classes, given what they are not made for: a Python error, or nothing.

They are nobody's to use but the dispatchers'. All the same whoever does is not to bring down the
process: compiled, each of these calls once read or wrote memory that was not theirs.
"""

import itertools
import mmap
import random
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from netstack_gro.errors import ConfigError, EngineStateError
from tests.engines import Engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

JUNK: list[Any] = [
    None,
    -1,
    0,
    1,
    129,
    2**31,
    2**62,
    2**70,
    1.5,
    "x",
    b"",
    b"x" * 200,
    bytearray(64),
    memoryview(bytes(64)),
    memoryview(bytearray(64))[::-1],
    [],
    [None],
    [b"x", 7],
    (),
    object(),
]


@pytest.fixture
def descriptor() -> Iterator[int]:
    """A socket from which nothing can be read, and nothing waits."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        opened.setblocking(False)
        yield opened.fileno()


def released() -> memoryview:
    view = memoryview(bytearray(64))
    view.release()
    return view


def misuse(call: Callable[..., Any], *choices: list[Any]) -> int:
    """Call something with all choices for its arguments; how many calls were no error."""
    taken = 0
    every = list(itertools.product(*choices))
    if len(every) > 3000:
        every = random.Random(10).sample(every, 3000)
    for arguments in every:
        try:
            call(*arguments)
        except Exception:
            continue
        taken += 1
    return taken


def of(engine: Engine, module: str, name: str) -> Any:
    return getattr(engine.module(f"dispatchers.{module}"), name)


# --- message vectors and reads ------------------------------------------------------------------


def packet_messages(engine: Engine, capacity: Any = 4, stride: Any = 100, **other: Any) -> Any:
    options = {"trust": False, "control_size": 0, "largest": 0, "interface": 0, "ends": False}
    kind = of(engine, "messages", "PacketMessages")
    return kind(capacity, stride, other.pop("vnet_size", 0), **options | other)


def test_messages_that_were_not_initialised_are_an_error(engine: Engine, descriptor: int) -> None:
    kind = of(engine, "messages", "PacketMessages")
    batch = engine.Batch(bytearray(400), capacity=4)
    for call in (lambda bare: bare.aim(batch), lambda bare: bare.fill(descriptor, batch)):
        with pytest.raises(EngineStateError):
            call(kind.__new__(kind))


def test_messages_take_a_batch_that_has_room_for_them(engine: Engine, descriptor: int) -> None:
    made = packet_messages(engine)
    batch = engine.Batch(bytearray(400), capacity=4)
    for wrong in (None, 5, b"x", [], object()):
        with pytest.raises(TypeError, match="a batch is required"):
            made.aim(wrong)
        with pytest.raises(TypeError, match="a batch is required"):
            made.fill(descriptor, wrong)
    bare = engine.Batch.__new__(engine.Batch)
    for small in (bare, engine.Batch(bytearray(399)), engine.Batch(capacity=4)):
        with pytest.raises(ValueError, match="too small"):
            made.aim(small)
    with pytest.raises(ValueError, match="cannot be written to"):
        made.aim(engine.Batch(bytes(400)))
    with pytest.raises(ValueError, match="not the one that was aimed at"):
        made.fill(descriptor, batch)
    made.aim(batch)
    assert made.fill(descriptor, batch) == 0
    narrow = engine.Batch(bytearray(400), capacity=3)
    made.aim(narrow)
    with pytest.raises(ValueError, match="too small"):
        made.fill(descriptor, narrow)
    made.aim(batch)
    batch.append(b"x")
    with pytest.raises(ValueError, match="not empty"):
        made.fill(descriptor, batch)


def test_messages_are_made_of_sizes_that_can_be(engine: Engine) -> None:
    for name, wrong in (
        ("capacity", 0),
        ("capacity", 2**31),
        ("stride", 0),
        ("stride", 2**40),
        ("vnet_size", 11),
        ("vnet_size", -12),
        ("control_size", -1),
        ("largest", -1),
        ("interface", 2**32),
    ):
        with pytest.raises(ConfigError, match=f"^{name}: "):
            packet_messages(engine, **{name: wrong})
    kind = of(engine, "messages", "MessageVector")
    misuse(kind, JUNK[:3], JUNK[:10], JUNK[:3], JUNK[:3])
    made = packet_messages(engine)
    with pytest.raises(EngineStateError):
        made.__init__(4, 9, 0, trust=False, control_size=0, largest=0, interface=0, ends=False)


def test_reads_take_a_batch_that_has_room_for_them(engine: Engine, descriptor: int) -> None:
    kind = of(engine, "reads", "Reads")
    made = kind(4, 100, 0, False)
    for wrong in (None, 5, b"x", [], object()):
        with pytest.raises(TypeError, match="a batch is required"):
            made.fill(descriptor, wrong)
    bare = engine.Batch.__new__(engine.Batch)
    for small in (
        bare,
        engine.Batch(bytearray(399)),
        engine.Batch(capacity=4),
        engine.Batch(bytearray(400), capacity=3),
    ):
        with pytest.raises(ValueError, match="too small"):
            made.fill(descriptor, small)
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ) as fixed:
        with pytest.raises(ValueError, match="cannot be written to"):
            made.fill(descriptor, engine.Batch(fixed, capacity=4))
    with pytest.raises(EngineStateError):
        kind.__new__(kind).fill(descriptor, engine.Batch(bytearray(400)))
    assert made.fill(descriptor, engine.Batch(bytearray(400), capacity=4)) == 0
    for arguments in ((0, 100, 0), (4, 0, 0), (-4, -100, 0), (4, 100, 11), (2**40, 100, 0)):
        with pytest.raises(ConfigError):
            kind(*arguments, False)
    misuse(kind, JUNK[:4], JUNK[:5], JUNK[:5], [False])
    with pytest.raises(EngineStateError):
        made.__init__(8, 100, 0, False)


# --- blocks -------------------------------------------------------------------------------------


def test_a_block_s_header_is_a_view_of_it(engine: Engine) -> None:
    is_ready, give_back = (of(engine, "blocks", name) for name in ("is_ready", "give_back"))
    for call in (is_ready, give_back):
        for wrong in (None, 5, b"x" * 64, bytearray(64), "x", [], object()):
            with pytest.raises(TypeError, match="a memoryview is required"):
                call(wrong)
        for view in (
            memoryview(bytearray(11)),
            memoryview(bytearray(64))[::-1],
            memoryview(bytearray(64))[::2],
            released(),
        ):
            with pytest.raises(ValueError):
                call(view)
    with pytest.raises(ValueError, match="cannot be written to"):
        give_back(memoryview(bytes(64)))
    block = bytearray(64)
    block[8] = 1
    assert is_ready(memoryview(block))
    give_back(memoryview(block))
    assert not is_ready(memoryview(block).toreadonly())


def test_a_block_is_read_from_the_batch_that_it_was_opened_in(engine: Engine) -> None:
    kind = of(engine, "blocks", "BlockReader")
    made = kind(1, 1500, 0)
    for wrong in (None, 5, b"x", [], object()):
        for call in (made.open, made.fill, kind.__new__(kind).open, kind.__new__(kind).fill):
            with pytest.raises(TypeError):
                call(wrong)
    with pytest.raises(ValueError, match="no slab"):
        made.open(engine.Batch.__new__(engine.Batch))
    block = bytearray(4096)
    for at, value in ((12, 8), (16, 48), (20, 4096)):
        block[at : at + 4] = value.to_bytes(4, sys.byteorder)
    assert made.open(engine.Batch(block))
    with pytest.raises(ValueError, match="another slab"):
        made.fill(engine.Batch(bytearray(100)))
    with pytest.raises(ValueError, match="another slab"):
        made.fill(engine.Batch.__new__(engine.Batch))
    for arguments in ((-1, 0, 0), (2**32, 0, 0), (0, -1, 0), (0, 0, 12), (0, 0, -10)):
        with pytest.raises(ConfigError):
            kind(*arguments)
    misuse(kind, JUNK, JUNK, JUNK[:5])


# --- trains -------------------------------------------------------------------------------------


def test_a_reader_is_made_once_and_of_sizes_that_can_be(engine: Engine, descriptor: int) -> None:
    kind = of(engine, "train_reader", "TrainReader")

    def make(*arguments: Any) -> Any:
        return kind(*arguments, trains=True)

    for arguments in (
        (0, 100, 64, 4),
        (1025, 100, 64, 4),
        (4, 0, 64, 4),
        (4, 65_536, 64, 4),
        (4, 100, -1, 4),
        (4, 100, 64, 0),
        (None, 100, 64, 4),
        (4, "x", 64, 4),
    ):
        with pytest.raises(ConfigError):
            make(*arguments)
    misuse(make, JUNK[:4], JUNK[:5], JUNK[:5], JUNK[:5])
    made = make(4, 100, 64, 4)
    with pytest.raises(EngineStateError, match="once"):
        made.__init__(4, 65_535, 64, 4, trains=True)
    bare = kind.__new__(kind)
    with pytest.raises(EngineStateError, match="not initialised"):
        bare.receive(descriptor)
    for reader in (made, bare):
        assert reader.take() == []
        for wrong in (None, (), 5, b"x"):
            with pytest.raises(TypeError, match="a list is required"):
                reader.take_into(wrong)
        for call in (reader.saw_drops, reader.start_drops):
            misuse(call, JUNK)
        misuse(reader.describe, JUNK, JUNK)
    misuse(made.receive, [None, -1, "x", 2**70, object()])

    class Long(bytes):
        """Says that it is longer than it is."""

        def __len__(self) -> int:
            return 1 << 20

    assert made.describe(Long(b"\x14"), False) == made.describe(b"\x14", False)


def test_a_train_that_nobody_made_is_empty(engine: Engine) -> None:
    for name in ("Train", "Datagram"):
        kind = of(engine, "trains", name)
        bare = kind.__new__(kind)
        if name == "Train":
            assert list(bare) == [b""]
            assert (bare.tobytes(), len(bare.buffer), bare.address) == (b"", 0, None)
            misuse(bare.__getitem__, JUNK)
        elif engine.name == "compiled":
            assert (bytes(bare), len(bare), bare.tobytes()) == (b"", 0, b"")
            assert bare == b""
            misuse(bare.__getitem__, JUNK)
        with pytest.raises(TypeError):
            kind()


# --- outgoing -----------------------------------------------------------------------------------


def outgoing(engine: Engine, room: Any = 1000, runs: Any = 8) -> Any:
    return of(engine, "outgoing", "Outgoing")(room, runs, never_equal_tail=False)


def test_what_is_aimed_at_is_what_a_message_can_hold(engine: Engine) -> None:
    made = outgoing(engine)
    for arguments in (
        (bytes(29), b"", 0, 1, 1),
        (b"", bytes(97), 0, 1, 1),
        (b"", b"", 1, 1, 1),
        (b"", bytes(24), -1, 1, 1),
        (b"", bytes(24), 2**31 - 1, 1, 1),
        (b"", b"", 0, 129, 1),
        (b"", b"", 0, 0, 1),
        (b"", b"", 0, 1, 0),
        (b"", b"", 0, 1, 65_536),
    ):
        with pytest.raises(ValueError):
            made.aim(*arguments)
    for name, control in ((None, b""), ("x", b""), (bytearray(16), b""), (b"", None)):
        with pytest.raises(TypeError):
            made.aim(name, control, 0, 1, 1)
    misuse(made.aim, JUNK, JUNK, JUNK[:8], JUNK[:8], JUNK[:8])


def test_what_is_staged_is_a_list_from_an_index_on(engine: Engine) -> None:
    made = outgoing(engine)
    for wrong in (None, (b"x",), b"x", 5, iter([b"x"])):
        with pytest.raises(TypeError, match="a list is required"):
            made.stage(wrong, 0)
    with pytest.raises(ValueError, match="not an index"):
        made.stage([b"x"], -1)
    assert made.stage([b"x"], 5) == 1
    for segment, start in ((0, 0), (-1, 0), (1, -1), (1, 5), (2**40, 0)):
        with pytest.raises(ValueError, match="not within a train"):
            made.stage_train(b"abcd", segment, start)
    misuse(made.stage, JUNK, JUNK)
    misuse(made.stage_train, JUNK, JUNK, JUNK)
    misuse(made.send, [None, -1, "x", 2**70, object()])
    made.clear()
    assert made.stage([b"x"], 0) == 1
    assert made.give_up()[0] == [b"x"]
    for room, runs in ((-1, 8), (2**40, 8), (100, 0), (100, 1025), (None, 8), (100, "x")):
        with pytest.raises(ConfigError):
            outgoing(engine, room, runs)
    misuse(lambda *arguments: outgoing(engine, *arguments), JUNK[:6], JUNK)
    with pytest.raises(EngineStateError, match="once"):
        made.__init__(100, 8, never_equal_tail=False)


def test_a_datagram_that_nobody_received_is_not_sent(engine: Engine) -> None:
    if engine.name == "interpreted":
        return  # it makes none
    kind = of(engine, "trains", "Datagram")
    with pytest.raises(TypeError, match="nobody received"):
        outgoing(engine).stage([kind.__new__(kind)], 0)


def test_a_list_that_shrinks_while_it_is_staged_is_staged_as_far_as_it_goes(
    engine: Engine,
) -> None:
    if sys.version_info < (3, 12):
        return  # no class written in Python is bytes-like
    datagrams: list[Any] = []

    class Shrinking:
        def __buffer__(self, _flags: int) -> memoryview:
            datagrams[1:] = []
            return memoryview(b"x")

    datagrams += [Shrinking(), *[b"y"] * 100]
    assert outgoing(engine).stage(datagrams, 0) <= 101


def test_outgoing_that_was_not_initialised_does_nothing(engine: Engine) -> None:
    kind = of(engine, "outgoing", "Outgoing")
    bare = kind.__new__(kind)
    misuse(bare.stage, [[b""], [b"x"], *JUNK], [0, *JUNK])
    misuse(bare.stage_train, JUNK, JUNK, JUNK)
    misuse(bare.aim, JUNK, JUNK, JUNK[:5], JUNK[:5], JUNK[:5])
    misuse(bare.stage, [[b""], [b"x"]], [0])
    for call in (bare.give_up, bare.peek, bare.cut_first, lambda: bare.first):
        with pytest.raises(IndexError):
            call()
    misuse(bare.send, [-1, None])
    for call in (bare.settle, bare.clear, bare.cut_all):
        misuse(call)
    assert bare.pending == 0
