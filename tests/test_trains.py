"""Trains and their datagrams, as sequences and as buffers, and for how long they stay valid."""

import copy
import gc
import pickle
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from netstack_gro.errors import PinnedError
from tests.datagrams import bodies, dispatch, equal_bodies, receiving, send_train, sending_to
from tests.engines import Engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


class Trains:
    """A dispatcher whose hook keeps nothing but what the test takes from it."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.kept: list[Any] = []
        self.keep = lambda train: train
        udp = engine.module("dispatchers.udp")
        self.dispatcher = udp.UdpDispatcher(("127.0.0.1", 0), self._take, **options)
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.connect(self.dispatcher.address)

    def _take(self, trains: list[Any]) -> None:
        self.kept += map(self.keep, trains)

    def train(self, datagrams: list[bytes]) -> Any:
        """What the dispatcher makes of a train; only the caller holds it."""
        send_train(self.sender, datagrams)
        dispatch(self.dispatcher, len(datagrams))
        return self.kept.pop()

    def close(self) -> None:
        self.dispatcher.close()
        self.sender.close()


@pytest.fixture
def trains(engine: Engine) -> Iterator[Trains]:
    made = Trains(engine)
    yield made
    made.close()


def test_a_train_is_a_sequence_of_its_datagrams(trains: Trains) -> None:
    sent = equal_bodies(5, 700, 300)
    train = trains.train(sent)
    assert len(train) == 5
    assert list(train) == list(train) == train.datagrams() == sent
    assert [train[place] for place in range(-5, 5)] == sent + sent
    assert train[1:3] == sent[1:3]
    assert train[::-2] == sent[::-2]
    for outside in (5, -6, sys.maxsize, -sys.maxsize):
        with pytest.raises(IndexError):
            train[outside]
    for wrong in (1.0, "1", None):
        with pytest.raises(TypeError):
            train[wrong]
    assert train.length == sum(map(len, sent))
    assert train.segment_size == 700
    assert repr(train) == "<Train of 5 x 700 bytes>"


def test_a_train_has_its_bytes_in_one_piece(trains: Trains) -> None:
    sent = equal_bodies(3, 1000, 1)
    train = trains.train(sent)
    assert train.buffer == b"".join(sent)
    assert train.tobytes() == b"".join(sent)
    assert train.buffer.readonly
    assert train.buffer.c_contiguous


@pytest.mark.parametrize("size", [0, 1, 1472, 65507])
def test_a_lone_datagram_is_a_train_of_one(trains: Trains, size: int) -> None:
    (sent,) = bodies(size)
    train = trains.train([sent])
    assert len(train) == 1
    assert list(train) == [sent]
    assert train[0] == train[-1] == sent
    assert train.buffer == sent
    assert train.segment_size == train.length == size


def test_a_datagram_is_a_read_only_bytes_like_object(trains: Trains) -> None:
    sent = equal_bodies(2, 64)
    train = trains.train(sent)
    datagram = train[1]
    assert len(datagram) == 64
    assert bytes(datagram) == datagram.tobytes() == sent[1]
    assert b"".join(train) == b"".join(sent)
    assert struct.unpack_from("!QI", datagram, 8) == struct.unpack_from("!QI", sent[1], 8)
    assert int.from_bytes(datagram, "big") == int.from_bytes(sent[1], "big")
    view = memoryview(datagram)
    assert (view.readonly, view.format, view.shape, view.strides) == (True, "B", (64,), (1,))
    with pytest.raises(TypeError):
        view[0] = 1
    assert not hasattr(datagram, "__setitem__") or isinstance(datagram, memoryview)
    with pytest.raises((BufferError, TypeError)):
        socket.socket.recv_into(trains.sender, datagram)


def test_datagrams_behave_alike_at_both_speeds(trains: Trains) -> None:
    """All that `DatagramLike` promises, by what a memoryview does."""
    sent = equal_bodies(2, 50)
    datagram = trains.train(sent)[0]
    model = memoryview(sent[0])
    assert list(datagram) == list(model)
    assert [datagram[at] for at in range(-50, 50)] == [model[at] for at in range(-50, 50)]
    assert isinstance(datagram[3:9], memoryview)
    assert datagram[3:9] == model[3:9]
    assert datagram[3:9].readonly
    with pytest.raises(IndexError):
        datagram[50]
    with pytest.raises(TypeError):
        datagram["a"]
    for equal in (sent[0], bytearray(sent[0]), model, datagram):
        assert datagram == equal
    for other in (sent[1], sent[0] + b"x", "text", 7, None):
        assert datagram != other
    with pytest.raises(TypeError, match="unhashable"):
        hash(datagram)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(datagram)
    with pytest.raises(TypeError):
        datagram < sent[0]  # noqa: B015
    assert datagram
    assert not trains.train([b""])[0]


def test_nobody_else_makes_trains_and_datagrams(engine: Engine, trains: Trains) -> None:
    module = engine.module("dispatchers.trains")
    train = trains.train(equal_bodies(2, 10))
    for kind in (module.Train, module.Datagram):
        with pytest.raises(TypeError, match="cannot create"):
            kind()
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Mine", (kind,), {})
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(train)
    with pytest.raises(TypeError, match="cannot pickle"):
        copy.copy(train)
    for name in ("length", "segment_size", "address", "invented"):
        with pytest.raises(AttributeError):
            setattr(train, name, 1)
    with pytest.raises(TypeError, match="cannot create"):
        train.__init__()
    assert len(train) == 2


def test_what_was_made_without_a_dispatcher_is_harmless(engine: Engine) -> None:
    module = engine.module("dispatchers.trains")
    train = module.Train.__new__(module.Train)
    assert len(train) == 1
    assert train.tobytes() == bytes(train[0]) == b""
    assert train.buffer.nbytes == 0
    assert train.address is train.packet_info is None
    datagram = module.Datagram.__new__(module.Datagram)
    assert len(datagram) == 0


# --- how long they stay valid -------------------------------------------------------------------


def flood(trains: Trains, reads: int) -> None:
    """More reads, of other bytes, than there are buffers."""
    trains.keep = lambda train: None
    for _ in range(reads):
        datagrams = equal_bodies(8, 1000)
        for _ in range(8):
            send_train(trains.sender, datagrams)
        dispatch(trains.dispatcher, 64)
    trains.kept.clear()


@pytest.mark.parametrize(
    "keep",
    [
        lambda train: train,
        lambda train: train[2],
        lambda train: memoryview(train[2]),
        lambda train: memoryview(train[2])[10:20],
        lambda train: train[2][10:20],
        lambda train: train.buffer,
        lambda train: iter(train[2]),
        lambda train: train.datagrams(),
    ],
    ids=["train", "datagram", "view", "view slice", "slice", "buffer", "iterator", "list"],
)
def test_what_is_kept_stays_as_it_was(trains: Trains, keep: Any) -> None:
    sent = equal_bodies(4, 900)
    kept = keep(trains.train(sent))
    flood(trains, 20)
    assert trains.dispatcher.stats.pinned == 1
    whole = b"".join(sent)
    if hasattr(kept, "datagrams"):
        assert list(kept) == sent
    elif isinstance(kept, list):
        assert kept == sent
    elif len(getattr(kept, "tobytes", list)()) == len(whole):
        assert kept.tobytes() == whole
    else:
        assert bytes(kept) in (sent[2], sent[2][10:20])
    del kept
    flood(trains, 3)
    assert trains.dispatcher.stats.pinned == 1


def test_what_is_kept_outlives_its_dispatcher(trains: Trains) -> None:
    sent = equal_bodies(4, 900)
    train = trains.train(sent)
    datagram, address = train[3], train.address
    trains.close()
    gc.collect()
    del train
    gc.collect()
    garbage = [bytearray(65536) for _ in range(64)]
    assert datagram == sent[3]
    assert address is not None
    del garbage


def test_what_the_hook_lets_go_of_pins_nothing(trains: Trains) -> None:
    trains.keep = lambda train: [bytes(datagram) for datagram in train]
    for _ in range(30):
        send_train(trains.sender, equal_bodies(3, 500))
        dispatch(trains.dispatcher, 3)
    assert trains.dispatcher.stats.pinned == 0


def test_a_buffer_that_is_let_go_of_is_used_again(engine: Engine) -> None:
    """Memory is bounded where a hook always keeps the latest few: no new buffer is made."""
    trains = Trains(engine, batch=1, max_slabs=4)
    try:
        latest: list[Any] = []
        for _ in range(50):
            sent = equal_bodies(2, 600)
            latest.append((trains.train(sent), sent))
            del latest[:-3]
            assert all(list(train) == sent for train, sent in latest)
        assert trains.dispatcher.stats.pinned == 50
    finally:
        trains.close()


def test_too_much_that_is_kept_is_an_error_that_loses_nothing(engine: Engine) -> None:
    trains = Trains(engine, batch=2, max_slabs=3)
    try:
        sent = [equal_bodies(2, 600) for _ in range(6)]
        kept = [trains.train(each) for each in sent[:3]]
        trains.kept.clear()
        send_train(trains.sender, sent[3])
        assert trains.dispatcher.dispatch_once(0) == 2
        send_train(trains.sender, sent[4])
        for _ in range(2):
            with pytest.raises(PinnedError, match="pin 3 buffers of 65535 bytes"):
                trains.dispatcher.dispatch_once(0)
        assert [list(train) for train in kept] == sent[:3]
        del kept[1]
        assert trains.dispatcher.dispatch_once(0) == 2
        assert [list(train) for train in trains.kept] == sent[3:5]
        assert [list(train) for train in kept] == [sent[0], sent[2]]
    finally:
        trains.close()


def test_memory_is_allocated_once(engine: Engine) -> None:
    """Eight buffers of 64 KiB, whatever arrives; not the product of all that could."""
    import tracemalloc

    tracemalloc.start()
    try:
        with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
            with sending_to(dispatcher) as sender:
                opened, _ = tracemalloc.get_traced_memory()
                for _ in range(10):
                    send_train(sender, equal_bodies(50, 1200))
                    dispatch(dispatcher, 50)
                    received.clear()
                used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 8 * 65_535 <= opened < 2 * 8 * 65_535
    assert used - opened < 65_535
    assert peak - opened < 4 * 65_535
