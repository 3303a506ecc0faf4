"""TrainReader: what it makes of messages, whatever their buffers were cut down to."""

import errno
import random
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.datagrams import UDP_GRO, bodies, equal_bodies, send_train
from tests.engines import Engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

SPACE = socket.CMSG_SPACE
COUNTERS = (
    "trains",
    "datagrams",
    "bytes",
    "truncated",
    "control_cut",
    "malformed",
    "dropped",
    "replaced",
)


class Reading:
    """A reader of a socket with UDP_GRO, and a sender to it."""

    def __init__(self, engine: Engine, receiver: socket.socket, **options: Any) -> None:
        given = {"batch": 4, "size": 65_535, "control_size": 256, "max_slabs": 4, "trains": True}
        given |= options
        kind = engine.module("dispatchers.train_reader").TrainReader
        trains = given.pop("trains")
        self.reader = kind(*given.values(), trains=trains)
        self.receiver = receiver
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.connect(receiver.getsockname())

    def read(self) -> list[list[bytes]]:
        messages = self.reader.receive(self.receiver.fileno())
        assert messages > 0
        return [[bytes(datagram) for datagram in train] for train in self.reader.take()]

    def counted(self) -> dict[str, int]:
        """The counters that are not 0."""
        pairs = zip(COUNTERS, self.reader.counters, strict=True)
        return {name: count for name, count in pairs if count}


@contextmanager
def reading(engine: Engine, **options: Any) -> Iterator[Reading]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        opened = Reading(engine, receiver, **options)
        with opened.sender:
            yield opened


# --- buffers that are too short -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "whole", "lost"), [(2500, 2, 3), (2000, 2, 3), (999, 0, 5), (4999, 4, 1), (4500, 4, 1)]
)
def test_the_datagrams_that_fit_are_delivered_and_the_cut_one_is_not(
    engine: Engine, size: int, whole: int, lost: int
) -> None:
    sent = equal_bodies(5, 1000)
    with reading(engine, size=size) as opened:
        send_train(opened.sender, sent)
        assert opened.read() == ([sent[:whole]] if whole else [])
        counted = opened.counted()
        assert counted.pop("truncated") == lost
        assert counted.get("datagrams", 0) == whole
        send_train(opened.sender, bodies(size))
        assert opened.read()
        assert opened.counted()["truncated"] == lost


def test_a_lone_datagram_that_was_cut_is_dropped_and_counted(engine: Engine) -> None:
    sent = bodies(1500, 1499, 1501)
    with reading(engine, size=1500) as opened:
        for datagram in sent:
            opened.sender.send(datagram)
        assert opened.read() == [[sent[0]], [sent[1]]]
        assert opened.counted() == {"trains": 2, "datagrams": 2, "bytes": 2999, "truncated": 1}


# --- control buffers that are too short ---------------------------------------------------------


@pytest.mark.parametrize("control_size", [0, 16, 18, 19])
def test_a_train_whose_segment_size_was_lost_is_never_delivered(
    engine: Engine, control_size: int
) -> None:
    """Not as one datagram, and not by the half of the size that is there."""
    with reading(engine, control_size=control_size) as opened:
        send_train(opened.sender, [*equal_bodies(2, 1000), *bodies(500)])
        assert opened.read() == []
        assert opened.counted() == {"control_cut": 1}
        (lone,) = bodies(1000)
        opened.sender.send(lone)
        assert opened.read() == [[lone]], "of a lone datagram, nothing was cut"


@pytest.mark.parametrize("control_size", [20, 24, 64])
def test_a_segment_size_that_is_there_is_enough(engine: Engine, control_size: int) -> None:
    """Whatever else was cut off: 20 bytes have no room for padding, 24 none for the rest."""
    with reading(engine, control_size=control_size) as opened:
        opened.receiver.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        sent = equal_bodies(3, 1000, 500)
        send_train(opened.sender, sent)
        assert opened.read() == [sent]
        assert opened.counted() == {"trains": 1, "datagrams": 3, "bytes": 2500}


def test_without_udp_gro_what_was_cut_of_the_control_messages_does_not_matter(
    engine: Engine,
) -> None:
    with reading(engine, control_size=0, trains=False) as opened:
        opened.receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 0)
        opened.receiver.setsockopt(socket.IPPROTO_IP, 8, 1)
        (sent,) = bodies(1000)
        opened.sender.send(sent)
        assert opened.read() == [[sent]]


# --- control messages by their bytes ------------------------------------------------------------


def message(level: int, kind: int, data: bytes) -> bytes:
    header = struct.pack("@Nii", socket.CMSG_LEN(len(data)), level, kind)
    return (header.ljust(socket.CMSG_LEN(0), b"\0") + data).ljust(SPACE(len(data)), b"\0")


@pytest.fixture
def describe(engine: Engine) -> Any:
    kind = engine.module("dispatchers.train_reader").TrainReader
    return kind(1, 100, 0, 1, trains=True).describe


@pytest.mark.parametrize(
    ("data", "cut", "segment"),
    [
        (struct.pack("=i", 1000), False, 1000),
        (struct.pack("=i", 1000), True, 1000),
        (struct.pack("=H", 1000), False, 1000),
        (struct.pack("=H", 1000), True, 0),
        (b"", True, 0),
        (b"", False, -1),
        (b"\1", False, -1),
        (struct.pack("=q", 1000), False, -1),
        (struct.pack("=i", 0), False, -1),
        (struct.pack("=i", -1000), False, -1),
        (struct.pack("=i", 70_000), False, 70_000),
    ],
)
def test_the_segment_size_is_a_native_integer_of_4_or_2_bytes(
    describe: Any, data: bytes, cut: bool, segment: int
) -> None:
    assert describe(message(socket.IPPROTO_UDP, UDP_GRO, data), cut)[0] == segment


def test_only_the_machine_s_own_byte_order_is_understood(describe: Any) -> None:
    other = ">" if sys.byteorder == "little" else "<"
    data = struct.pack(f"{other}i", 1000)
    assert describe(message(socket.IPPROTO_UDP, UDP_GRO, data), False)[0] != 1000


def test_all_messages_are_found_in_any_order(describe: Any) -> None:
    parts = [
        message(socket.IPPROTO_UDP, UDP_GRO, struct.pack("=i", 1200)),
        message(socket.IPPROTO_IP, 1, b"\x02"),  # IP_TOS
        message(socket.IPPROTO_IP, 8, bytes(12)),  # IP_PKTINFO
        message(socket.SOL_SOCKET, 35, struct.pack("=qq", 1_700_000_000, 999_999_999)),
        message(socket.SOL_SOCKET, 40, struct.pack("=I", 77)),  # SO_RXQ_OVFL
        message(socket.IPPROTO_IP, 2, struct.pack("=i", 64)),  # IP_TTL, not ours
    ]
    for seed in range(20):
        random.Random(seed).shuffle(parts)
        control = b"".join(parts)
        segment, tos, at, size, time, drops = describe(control, False)
        assert (segment, tos, size, drops) == (1200, 2, 12, 77)
        assert time == 1_700_000_000_999_999_999
        assert control[at : at + size] == bytes(12)


def test_messages_of_ipv6_and_of_32_bit_time(describe: Any) -> None:
    control = message(socket.IPPROTO_IPV6, 67, struct.pack("=i", 0xB9))  # IPV6_TCLASS
    control += message(socket.IPPROTO_IPV6, 50, bytes(range(20)))  # IPV6_PKTINFO
    control += message(socket.SOL_SOCKET, 35, struct.pack("=ii", 1_700_000_000, 5))
    segment, tos, at, size, time, drops = describe(control, False)
    assert (segment, tos, size, time, drops) == (0, 0xB9, 20, 1_700_000_000_000_000_005, -1)
    assert control[at : at + size] == bytes(range(20))


def test_of_two_packet_informations_that_of_ipv6_counts(describe: Any) -> None:
    """Whoever opened an IPv6 socket may have asked for both, of IPv4 datagrams."""
    parts = [message(socket.IPPROTO_IP, 8, bytes(12)), message(socket.IPPROTO_IPV6, 50, bytes(20))]
    for control in (b"".join(parts), b"".join(reversed(parts))):
        assert describe(control, False)[3] == 20


def test_what_is_said_beyond_the_end_is_not_read(describe: Any) -> None:
    parts = message(socket.IPPROTO_IP, 1, b"\x02") + message(socket.IPPROTO_IPV6, 50, bytes(20))
    for end in range(SPACE(1), len(parts)):
        _, tos, _, size, _, _ = describe(parts[:end], False)
        assert tos == 2
        assert size == (20 if end >= SPACE(1) + socket.CMSG_LEN(20) else 0)


def test_no_control_messages_say_nothing(describe: Any) -> None:
    assert describe(b"", False) == (0, -1, 0, 0, -1, -1)


def test_both_engines_read_any_bytes_alike(both_engines: tuple[Engine, Engine]) -> None:
    compiled, interpreted = (
        engine.module("dispatchers.train_reader").TrainReader(1, 100, 0, 1, trains=True).describe
        for engine in both_engines
    )
    generator = random.Random(5)
    levels, kinds = (0, 1, 17, 41, 99), (1, 8, 35, 40, 50, 64, 67, 104)
    for _ in range(3000):
        control = b""
        for _ in range(generator.randrange(5)):
            data = generator.randbytes(generator.choice((0, 1, 2, 3, 4, 8, 12, 16, 20, 30)))
            control += message(generator.choice(levels), generator.choice(kinds), data)
        garbled = bytearray(control)
        for _ in range(generator.randrange(4)):
            if garbled:
                garbled[generator.randrange(len(garbled))] = generator.choice((0, 1, 15, 16, 255))
        control = bytes(garbled[: generator.randrange(len(garbled) + 1)])
        cut = generator.random() < 0.5
        assert compiled(control, cut) == interpreted(control, cut), control.hex()


# --- counting -----------------------------------------------------------------------------------


def test_the_kernel_s_count_of_drops_wraps(engine: Engine) -> None:
    with reading(engine) as opened:
        reader = opened.reader
        reader.start_drops(2**32 - 10)
        for count, total in (
            (2**32 - 10, 0),
            (2**32 - 4, 6),
            (2**32 - 4, 6),
            (5, 15),
            (3, 15),  # said before, queued since
            (2**32 - 9, 15),
            (7, 17),
            (2**31 - 1, 2**31 + 9),
            (2**32 - 2, 2**32 + 8),
        ):
            reader.saw_drops(count)
            assert opened.counted().get("dropped", 0) == total


def test_an_empty_socket_answers_with_an_errno(engine: Engine) -> None:
    with reading(engine) as opened:
        assert opened.reader.receive(opened.receiver.fileno()) == -errno.EAGAIN
        assert opened.reader.take() == []
        assert opened.reader.receive(-1) == -errno.EBADF
        sent = equal_bodies(2, 5)
        send_train(opened.sender, sent)
        assert opened.read() == [sent]
        assert opened.reader.receive(opened.receiver.fileno()) == -errno.EAGAIN
        assert opened.reader.take() == []


def test_buffers_are_used_again_after_a_read_of_fewer(engine: Engine) -> None:
    """Lengths that the kernel wrote over are set again, of just those messages."""
    with reading(engine, batch=4) as opened:
        for count in (4, 1, 3, 2, 4, 4, 1):
            sent = [equal_bodies(2, 10 + number) for number in range(count)]
            for train in sent:
                send_train(opened.sender, train)
            assert opened.read() == sent
