"""Outgoing: which datagrams are sent together, and that none is forgotten."""

import errno
import random
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from netstack_gro.errors import EngineStateError
from tests.datagrams import UDP_GRO, bodies, equal_bodies
from tests.engines import Engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

ROOM, RUNS = 20_000, 12


@pytest.fixture
def outgoing(engine: Engine) -> Any:
    return make(engine)


def make(engine: Engine, *, never_equal_tail: bool = False) -> Any:
    made = engine.module("dispatchers.outgoing").Outgoing(
        ROOM, RUNS, never_equal_tail=never_equal_tail
    )
    made.aim(b"", b"", 0, 64, 65_507)
    return made


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A sender, connected, and what it sends to, which takes trains."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        sender.connect(receiver.getsockname())
        yield sender, receiver


def messages(receiver: socket.socket) -> list[bytes]:
    """What waits in a socket, a train as one."""
    found = []
    while True:
        try:
            found.append(receiver.recv(65_535))
        except BlockingIOError:
            return found


def staged(outgoing: Any) -> list[list[int]]:
    """The lengths in each run, which are given up."""
    runs = []
    while outgoing.pending:
        datagrams, _aim = outgoing.give_up()
        runs.append([len(datagram) for datagram in datagrams])
    outgoing.clear()
    return runs


def expected_runs(sizes: list[int], most: int, octets: int) -> list[list[int]]:
    """By the rule: equal ones and one shorter, neither more than ``most`` nor than ``octets``."""
    runs: list[list[int]] = []
    for size in sizes:
        run = runs[-1] if runs else []
        if (
            run
            and 0 < size <= run[0]
            and run[-1] == run[0]
            and len(run) < most
            and sum(run) + size <= octets
        ):
            run.append(size)
        else:
            runs.append([size])
    return runs


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([100, 1200, 1200], [[100], [1200, 1200]]),
        ([1200, 1200, 100, 1200], [[1200, 1200, 100], [1200]]),
        ([100, 100, 100], [[100, 100, 100]]),
        ([100, 99, 98], [[100, 99], [98]]),
        ([100, 0, 0, 100], [[100], [0], [0], [100]]),
        ([100, 100, 0], [[100, 100], [0]]),
        ([1] * 65, [[1] * 64, [1]]),
        ([], []),
        ([0], [[0]]),
    ],
)
def test_runs_are_of_one_size_with_one_shorter_tail(
    outgoing: Any, sizes: list[int], runs: list[list[int]]
) -> None:
    assert outgoing.stage(bodies(*sizes), 0) == len(sizes)
    assert outgoing.pending == len(runs)
    assert staged(outgoing) == runs


def test_any_sizes_make_the_runs_of_the_rule(engine: Engine) -> None:
    generator = random.Random(7)
    outgoing = make(engine)
    for _ in range(300):
        most = generator.choice((1, 2, 5, 64))
        octets = generator.choice((50, 300, 1000, 65_507))
        outgoing.aim(b"", b"", 0, most, octets)
        choices = generator.choices(range(60), k=3)
        sent = bodies(*generator.choices(choices, k=generator.randrange(30)))
        runs = expected_runs(list(map(len, sent)), most, octets)
        taken = outgoing.stage(sent, 0)
        if len(runs) <= RUNS:
            assert taken == len(sent)
        assert taken == sum(map(len, runs[:RUNS]))
        found: list[bytes] = []
        sizes = []
        while outgoing.pending:
            datagrams, _aim = outgoing.give_up()
            found += datagrams
            sizes.append(list(map(len, datagrams)))
        outgoing.clear()
        assert sizes == runs[:RUNS]
        assert found == sent[:taken]


def test_any_train_is_cut_as_it_says(engine: Engine) -> None:
    generator = random.Random(8)
    outgoing = make(engine)
    for _ in range(300):
        most = generator.choice((1, 2, 5, 64))
        octets = generator.choice((50, 300, 1000, 65_507))
        outgoing.aim(b"", b"", 0, most, octets)
        segment = generator.randrange(1, 120)
        (data,) = bodies(generator.randrange(1, 3000))
        found: list[bytes] = []
        at = 0
        while at < len(data):
            staged_to = outgoing.stage_train(data, segment, at)
            assert staged_to > at
            at = staged_to
            while outgoing.pending:
                datagrams, _aim = outgoing.give_up()
                assert len(datagrams) == 1 or len(datagrams) <= most
                assert len(datagrams) == 1 or sum(map(len, datagrams)) <= octets
                assert all(len(datagram) == segment for datagram in datagrams[:-1])
                found += datagrams
            outgoing.clear()
        assert found == [data[at : at + segment] for at in range(0, len(data), segment)]


def test_where_there_is_no_room_staging_stops_and_goes_on_later(outgoing: Any) -> None:
    sent = equal_bodies(50, 1000)
    assert outgoing.stage(sent, 0) == 20
    assert outgoing.stage(sent, 20) == 20
    assert outgoing.stage_train(b"".join(sent), 1000, 20_000) == 20_000
    assert sum(map(len, staged(outgoing))) == 20
    assert outgoing.stage(sent, 20) == 40
    staged(outgoing)
    assert outgoing.stage([bytes(ROOM + 1)], 0) == 0
    assert outgoing.stage([bytes(ROOM), b""], 0) == 2
    staged(outgoing)
    assert outgoing.stage_train(bytes(ROOM + 1), ROOM + 1, 0) == 0


def test_an_empty_datagram_fits_behind_all_there_is_room_for(
    outgoing: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    sender, receiver = pair
    sent = [*bodies(ROOM), b""]
    assert outgoing.stage(sent, 0) == 2
    assert outgoing.send(sender.fileno()) == 2
    assert messages(receiver) == sent


def test_each_address_has_runs_of_its_own(outgoing: Any) -> None:
    first, second = b"a" * 16, b"b" * 28
    outgoing.aim(first, b"control", 3, 64, 65_507)
    outgoing.stage(bodies(5, 5), 0)
    outgoing.aim(second, b"", 0, 64, 65_507)
    outgoing.stage(bodies(5), 0)
    outgoing.aim(first, b"control", 3, 1, 65_507)
    outgoing.stage(bodies(5, 5), 0)
    taken = []
    while outgoing.pending:
        datagrams, aim = outgoing.give_up()
        taken.append((len(datagrams), aim))
    assert taken == [
        (2, (first, b"control", 3)),
        (1, (second, b"", 0)),
        (1, (first, b"control", 3)),
        (1, (first, b"control", 3)),
    ]


def test_it_sends_trains_and_then_what_was_staged_is_gone(
    outgoing: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    sender, receiver = pair
    sent = [*equal_bodies(5, 700, 300), *equal_bodies(3, 900), *bodies(0, 1)]
    outgoing.stage(sent, 0)
    assert outgoing.send(sender.fileno()) == 4
    assert outgoing.pending == 0
    assert outgoing.send(sender.fileno()) == 0
    assert outgoing.counters == (10, sum(map(len, sent)), 2, 0)
    assert messages(receiver) == [b"".join(sent[:5]), b"".join(sent[5:8]), b"", sent[9]]
    outgoing.clear()


def test_control_messages_are_as_long_as_they_say(
    outgoing: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    """The places of a batch are used again: one with a size, then one with none, and back."""
    sender, receiver = pair
    for turn in range(6):
        sent = equal_bodies(3, 500) if turn % 2 else bodies(500)
        outgoing.stage(sent, 0)
        assert outgoing.send(sender.fileno()) == 1
        outgoing.clear()
        assert messages(receiver) == [b"".join(sent)]


def test_a_run_that_is_cut_goes_datagram_by_datagram(
    outgoing: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    sender, receiver = pair
    sent = [*equal_bodies(4, 700, 300), *equal_bodies(3, 900)]
    outgoing.stage(sent, 0)
    assert outgoing.first == (b"", 700, 4, False)
    assert outgoing.cut_first()
    assert not outgoing.cut_first()
    assert outgoing.first == (b"", 700, 1, False)
    assert outgoing.send(sender.fileno()) == 4
    assert outgoing.send(sender.fileno()) == 1
    assert messages(receiver) == [*sent[:4], b"".join(sent[4:])]
    outgoing.clear()
    outgoing.stage(sent, 0)
    outgoing.cut_all()
    assert [outgoing.send(sender.fileno()) for _ in range(2)] == [4, 3]
    assert messages(receiver) == sent
    outgoing.clear()
    outgoing.stage(sent, 0)
    assert outgoing.send(sender.fileno()) == 2


def test_equal_tails_are_cut_where_they_must_not_be(
    engine: Engine, pair: tuple[socket.socket, socket.socket]
) -> None:
    sender, receiver = pair
    outgoing = make(engine, never_equal_tail=True)
    sent = [*equal_bodies(4, 700), *equal_bodies(3, 800, 100), *bodies(801)]
    outgoing.stage(sent, 0)
    counts = []
    while outgoing.pending:
        counts.append(outgoing.send(sender.fileno()))
    assert counts == [4, 2]
    assert messages(receiver) == [*sent[:4], b"".join(sent[4:7]), sent[7]]


def test_an_error_is_that_of_the_next_message(
    outgoing: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    sender, receiver = pair
    outgoing.stage([b"before", bytes(10), b"after"], 0)
    assert outgoing.send(-1) == -errno.EBADF
    assert outgoing.pending == 2
    assert outgoing.give_up() == ([b"before"], (b"", b"", 0))
    assert outgoing.send(sender.fileno()) == 1
    assert messages(receiver) == [bytes(10) + b"after"]


def test_what_is_not_bytes_like_stops_staging(outgoing: Any) -> None:
    for wrong in ("text", 7, None, memoryview(bytes(8))[::2]):
        with pytest.raises(TypeError):
            outgoing.stage([b"x", wrong, b"y"], 0)
        assert staged(outgoing) == [[1]]


def test_any_kind_of_buffer_is_taken(engine: Engine, outgoing: Any) -> None:
    from array import array

    kinds = [b"abcd", bytearray(b"abcd"), memoryview(b"xabcdx")[1:5], array("H", b"abcd")]
    assert outgoing.stage(kinds, 0) == 4
    assert outgoing.give_up()[0] == [b"abcd"] * 4


def test_nothing_can_be_asked_of_nothing(outgoing: Any) -> None:
    for ask in (outgoing.give_up, outgoing.cut_first, lambda: outgoing.first):
        with pytest.raises(IndexError, match="nothing is left"):
            ask()
    with pytest.raises(EngineStateError, match="once"):
        outgoing.__init__(ROOM, RUNS, never_equal_tail=False)
    with pytest.raises(ValueError, match="too long"):
        outgoing.aim(bytes(29), b"", 0, 1, 1)
    with pytest.raises(ValueError, match="too long"):
        outgoing.aim(b"", bytes(97), 0, 1, 1)
