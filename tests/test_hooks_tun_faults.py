"""TunWriter when a write fails: nothing is lost, order holds, and merging ends only for cause.

What a real kernel does on demand, it does here; the errors that it gives in rare moments only are
put in front of the real writev(2).
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from netstack_gro import segment
from netstack_gro.dispatchers.tun_device import TunDevice
from netstack_gro.errors import DeviceDownError, DeviceError, DeviceGoneError
from netstack_gro.hooks.tun_frames import probe
from netstack_gro.verdicts import Verdict
from netstack_gro.virtio import GsoType, VirtioHeader
from tests import builders, lab, tuns
from tests.builders import TCP, UDP
from tests.engines import Engine
from tests.requirements import lacks_kernel, lacks_tun, require
from tests.tuns import PARTIAL, Router, routed, stream, writer_to

SIZES = [1000, 1000, 1000, 300]
REFUSED_KINDS = [(4, TCP), (6, TCP), (4, UDP), (6, UDP)]

Rule = Callable[[VirtioHeader, bytes], int]
"""The errno for a write of a header and a packet; 0 to let the kernel have it."""


@pytest.fixture
def router() -> Iterator[Router]:
    require(lacks_tun() or lacks_kernel(6, 2))
    with lab.Lab() as net, Router(net) as made:
        yield made


class Writev:
    """The real writev(2) with a rule in front of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
        self.rule = rule
        self.refused: list[bytes] = []
        self.written: list[bytes] = []
        self._writev = os.writev
        monkeypatch.setattr(os, "writev", self)

    def __call__(self, descriptor: int, buffers: Sequence[Any]) -> int:
        data = b"".join(buffers)
        number = self.rule(VirtioHeader.decode(data), data[10:])
        if number:
            self.refused.append(data)
            raise OSError(number, os.strerror(number))
        self.written.append(data)
        return self._writev(descriptor, buffers)


def times(count: int, number: int) -> Rule:
    """That errno for so many writes, and no more."""
    left = [number] * count
    return lambda header, packet: left.pop() if left else 0


def merged(number: int) -> Rule:
    """That errno for super-packets."""
    return lambda header, packet: number if header.gso_type else 0


def is_probe(packet: bytes) -> bool:
    """TTL or hop limit 0, which no packet of a test has."""
    return packet[8 if packet[0] >> 4 == 4 else 7] == 0


def lone(count: int, version: int = 4) -> list[bytes]:
    """Packets that do not merge."""
    return [stream(version, UDP, [100], sport=1 + number)[0] for number in range(count)]


def dispatch(engine: Engine, writer: Any, packets: Sequence[bytes]) -> list[Verdict]:
    """Merge and write; the verdicts of what was written."""
    verdicts: list[Verdict] = []

    class Noting:
        limits = writer.limits

        def __call__(self, packets: list[Any]) -> None:
            verdicts.extend(packet.verdict for packet in packets)
            writer(packets)

    with engine.GroDispatcher(Noting(), PARTIAL) as gro:
        gro.dispatch(packets)
    return verdicts


# --- a refused super-packet ----------------------------------------------------------------------


@pytest.mark.parametrize(("version", "protocol"), REFUSED_KINDS)
def test_one_that_is_refused_is_cut_and_merging_goes_on(
    engine: Engine,
    router: Router,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: int,
    protocol: int,
) -> None:
    packets = stream(version, protocol, SIZES, first_id=1)
    writer = writer_to(engine, router.entry)
    writev = Writev(monkeypatch, times(1, errno.EINVAL))
    before = writer.limits
    for _ in range(2):
        for _ in range(2):
            dispatch(engine, writer, packets)
            assert router.read(len(packets)) == routed(packets)
        writev.rule = times(1, errno.EINVAL)
    assert len(writev.refused) == 2
    assert writer.limits is before
    assert (writer.stats.packets, writer.stats.cut, writer.stats.super_packets) == (4, 2, 2)
    assert sum(is_probe(data[10:]) for data in writev.written) == 1  # it is known from then on
    assert caplog.records == []
    assert router.idle


@pytest.mark.parametrize(("version", "protocol"), REFUSED_KINDS)
def test_a_kernel_that_refuses_the_probe_too_gets_nothing_merged_any_more(
    engine: Engine,
    router: Router,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: int,
    protocol: int,
) -> None:
    """The other transport goes on; what was decided is said once."""
    other = UDP if protocol == TCP else TCP
    kinds = {GsoType.UDP_L4} if protocol == UDP else {GsoType.TCPV4, GsoType.TCPV6}
    packets = stream(version, protocol, SIZES, first_id=1)
    writer = writer_to(engine, router.entry)
    writev = Writev(monkeypatch, lambda header, _: errno.EINVAL if header.gso_type in kinds else 0)
    assert dispatch(engine, writer, packets) == [Verdict.MERGED]
    assert router.read(len(packets)) == routed(packets)
    assert (writer.limits.tcp, writer.limits.udp) == (protocol == UDP, protocol == TCP)
    assert len(writev.refused) == 2
    assert is_probe(writev.refused[1][10:])
    assert dispatch(engine, writer, packets) == [Verdict.PROTOCOL_OFF] * len(packets)
    assert router.read(len(packets)) == routed(packets)
    others = stream(version, other, SIZES, first_id=1)
    assert dispatch(engine, writer, others) == [Verdict.MERGED]
    assert router.read(len(others)) == routed(others)
    assert len(writev.refused) == 2
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("netstack_gro", "WARNING")
    assert record.getMessage().startswith("tun0: ")
    assert ("UDP" if protocol == UDP else "TCP") in record.getMessage()


def test_a_kernel_that_refuses_short_tails_only_is_found_out(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 6.6.44 and other stable releases did."""

    def rule(header: VirtioHeader, packet: bytes) -> int:
        short = header.gso_type and (len(packet) - header.hdr_len) % header.gso_size
        return errno.EINVAL if short else 0

    writer = writer_to(engine, router.entry)
    Writev(monkeypatch, rule)
    for sizes, merging in (([1000, 1000], True), (SIZES, False), ([1000, 1000], False)):
        packets = stream(4, TCP, sizes, first_id=1)
        dispatch(engine, writer, packets)
        assert router.read(len(packets)) == routed(packets)
        assert writer.limits.tcp is merging


def test_a_probe_that_meets_another_error_says_nothing(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(header: VirtioHeader, packet: bytes) -> int:
        if not header.gso_type:
            return 0
        return errno.ENOBUFS if is_probe(packet) else errno.EINVAL

    packets = stream(4, TCP, SIZES, first_id=1)
    writer = writer_to(engine, router.entry)
    writev = Writev(monkeypatch, rule)
    for _ in range(2):
        dispatch(engine, writer, packets)
        assert router.read(len(packets)) == routed(packets)
    assert writer.limits.tcp
    assert sum(is_probe(data[10:]) for data in writev.refused) == 2  # it is still to be found out


@pytest.mark.engineless
@pytest.mark.parametrize("kind", ["tun", "tap"])
def test_this_kernel_takes_every_probe_and_nothing_comes_of_it(kind: Any) -> None:
    require(lacks_tun() or lacks_kernel(6, 2))
    with lab.Lab() as net, Router(net, kind=kind) as router:
        namespace = router.namespace
        before = namespace.counters()
        for gso_type, version in (
            (GsoType.TCPV4, 4),
            (GsoType.TCPV6, 6),
            (GsoType.UDP_L4, 4),
            (GsoType.UDP_L4, 6),
        ):
            header, frame = probe(gso_type, version, router.entry.link)
            packet = frame[14 if kind == "tap" else 0 :]
            described = VirtioHeader.decode(header)
            pieces = [
                piece[14 if kind == "tap" else 0 :]
                for piece in segments(frame, described, router.entry)
            ]
            assert is_probe(packet)
            assert len({len(piece) for piece in pieces[:-1]}) == 1
            assert len(pieces[-1]) < len(pieces[0])
            assert all(builders.fix_checksums(piece) == piece for piece in pieces)
            assert os.writev(router.entry.fileno(), [header, frame]) == len(header) + len(frame)
        after = namespace.counters()
        assert router.idle
        for name in ("IpForwDatagrams", "IpInDelivers", "IpOutRequests", "IcmpOutMsgs"):
            assert after[name] == before[name], name
        for name in ("Ip6OutForwDatagrams", "Icmp6OutErrors", "Ip6InDelivers"):
            assert after[name] == before[name], name
        assert namespace.traffic("tun0")["rx_packets"] == 4


@pytest.mark.engineless
def test_no_bridge_forwards_a_probe() -> None:
    require(lacks_tun() or lacks_kernel(6, 2))
    ports = ("tap0", "tap1")
    with lab.Lab() as net, net.namespace(ipv6=False) as namespace:
        with TunDevice("tap0", kind="tap") as entry, TunDevice("tap1", kind="tap") as out:
            with namespace._netlink() as netlink:
                netlink.link("add", ifname="br0", kind="bridge", br_forward_delay=0)
                for port in ports:
                    netlink.link("set", index=namespace.index(port), master=namespace.index("br0"))
            for interface in ("br0", *ports):
                namespace.up(interface)
            for interface in ports:
                namespace.wait_for_carrier(interface)
            header, frame = probe(GsoType.TCPV4, 4, "ethernet")
            flooded = builders.ethernet(stream(4, UDP, [10])[0], destination=b"\xff" * 6)
            os.writev(entry.fileno(), [header, frame])
            os.writev(entry.fileno(), [bytes(10), flooded])
            seen = []
            while flooded not in seen:  # the bridge sends frames of its own, too
                seen += [data[10:] for data in tuns.read_frames(out, 1)]
            assert not any(data[:6] == frame[:6] for data in seen)


def segments(frame: bytes, header: VirtioHeader, device: TunDevice) -> list[bytes]:
    return list(segment(frame, header, link=device.link))


# --- no room -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM])
def test_a_write_without_room_is_repeated(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    packets = lone(3) + stream(6, TCP, SIZES)
    writer = writer_to(engine, router.entry, timeout=tuns.PATIENCE_S)
    Writev(monkeypatch, times(3, number))
    dispatch(engine, writer, packets)
    assert router.read(len(packets)) == routed(packets)
    assert writer.stats.retries == 3
    assert writer.backlog == 0


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOBUFS])
def test_what_finds_no_room_for_too_long_waits_for_the_next_call_in_order(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    packets = lone(2) + stream(6, TCP, SIZES) + lone(1, version=6)
    writer = writer_to(engine, router.entry, timeout=0.01)
    full = [False]
    Writev(monkeypatch, lambda header, packet: number if full[0] and header.gso_type else 0)
    full[0] = True
    started = time.monotonic()
    with pytest.raises(DeviceError, match=r"^tun0: cannot be written to") as caught:
        dispatch(engine, writer, packets)
    assert time.monotonic() - started >= 0.01
    assert caught.value.errno == number
    assert (writer.stats.packets, writer.backlog) == (2, 2)
    with pytest.raises(DeviceError):
        dispatch(engine, writer, lone(1))  # which goes behind
    assert (writer.stats.packets, writer.backlog) == (2, 3)
    with pytest.raises(DeviceError):
        writer.flush()
    assert writer.backlog == 3
    full[0] = False
    last = stream(4, TCP, [5])
    dispatch(engine, writer, last)
    expected = [*packets, *lone(1), *last]
    assert router.read(len(expected)) == routed(expected)
    assert (writer.stats.packets, writer.stats.super_packets, writer.backlog) == (6, 1, 0)
    assert router.idle


def test_the_whole_call_waits_no_longer_than_the_timeout(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often there was no room in it."""
    clock = [1000.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    module = engine.module("hooks.room")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    writer = writer_to(engine, router.entry, timeout=0.0205)
    calls = [0]

    def rule(header: VirtioHeader, packet: bytes) -> int:
        calls[0] += 1
        return errno.ENOBUFS if calls[0] % 12 else 0  # each packet waits more than half of it

    Writev(monkeypatch, rule)
    with pytest.raises(DeviceError):
        dispatch(engine, writer, lone(10))
    assert clock[0] == pytest.approx(1000 + 0.0205)
    assert (writer.stats.packets, writer.backlog) == (1, 9)
    calls[0] = 0
    with pytest.raises(DeviceError):  # which has as much time again
        writer([])
    assert clock[0] == pytest.approx(1000 + 2 * 0.0205)
    assert (writer.stats.packets, writer.backlog) == (2, 8)
    while writer.backlog:
        with suppress(DeviceError):
            writer.flush()
    assert router.read(10) == routed(lone(10))


def test_the_rest_of_a_packet_that_is_being_cut_waits(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = stream(4, TCP, SIZES, first_id=1) + lone(1)
    writer = writer_to(engine, router.entry, timeout=0)
    pieces = [0]

    def rule(header: VirtioHeader, packet: bytes) -> int:
        if header.gso_type:
            return errno.EINVAL
        pieces[0] += 1
        return errno.EAGAIN if pieces[0] == 3 else 0

    Writev(monkeypatch, rule)
    with pytest.raises(DeviceError) as caught:
        dispatch(engine, writer, packets)
    assert caught.value.errno == errno.EAGAIN
    assert writer.backlog == 3  # two segments and the other packet
    writer.flush()
    assert router.read(len(packets)) == routed(packets)
    assert router.idle


def test_only_beyond_the_backlog_is_anything_dropped_and_it_is_counted(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = lone(5)
    writer = writer_to(engine, router.entry, timeout=0, backlog=3 * len(packets[0]) + 1)
    writev = Writev(monkeypatch, lambda header, packet: errno.ENOBUFS)
    with pytest.raises(DeviceError):
        dispatch(engine, writer, packets)
    assert (writer.backlog, writer.stats.dropped) == (3, 2)
    writev.rule = lambda header, packet: 0
    writer.flush()
    assert router.read(3) == routed(packets[:3])
    with pytest.raises(DeviceError):  # there is room for as many again
        writev.rule = lambda header, packet: errno.ENOBUFS
        dispatch(engine, writer, packets)
    assert (writer.backlog, writer.stats.dropped) == (3, 4)
    assert writer.take_back() == packets[:3]
    with pytest.raises(DeviceError):
        dispatch(engine, writer, packets)
    assert (writer.backlog, writer.stats.dropped) == (3, 6)


def test_an_interrupted_write_is_repeated(engine: Engine, router: Router) -> None:
    """EINTR never gets here: Python repeats the call when the handler returns (PEP 475)."""
    fired = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: fired.append(1))
    done = threading.Event()
    target = threading.get_ident()

    def shoot() -> None:
        while not done.wait(0.0001):
            signal.pthread_kill(target, signal.SIGUSR1)

    shooter = threading.Thread(target=shoot)
    try:
        shooter.start()
        writer = writer_to(engine, router.entry)
        for number in range(40):
            packets = stream(4, TCP, SIZES, first_id=number)
            dispatch(engine, writer, packets)
            assert router.read(len(packets)) == routed(packets)
    finally:
        done.set()
        shooter.join()
        signal.signal(signal.SIGUSR1, previous)
    assert fired


# --- down and gone -------------------------------------------------------------------------------


def test_while_the_interface_is_down_packets_wait(engine: Engine, router: Router) -> None:
    packets = lone(2) + stream(4, TCP, SIZES, first_id=1)
    writer = writer_to(engine, router.entry)
    router.namespace.down("tun0")
    for _ in range(2):
        with pytest.raises(DeviceDownError, match=r"^tun0: .*down") as caught:
            dispatch(engine, writer, packets)
        assert caught.value.errno == errno.EIO
    assert writer.backlog == 6
    router.namespace.up("tun0")
    writer.flush()
    assert router.read(12) == routed(packets + packets)
    assert writer.stats.super_packets == 2


def test_what_cannot_be_written_to_a_device_that_is_gone_can_be_taken_back(
    engine: Engine, router: Router
) -> None:
    packets = lone(2) + stream(6, UDP, SIZES) + stream(4, TCP, SIZES, first_id=1)
    writer = writer_to(engine, router.entry)
    router.namespace.delete("tun0")
    with pytest.raises(DeviceGoneError, match=r"^tun0: ") as caught:
        dispatch(engine, writer, packets)
    assert caught.value.errno == errno.EBADFD
    assert writer.backlog == 4
    assert writer.take_back() == packets
    assert writer.backlog == 0
    assert writer.take_back() == []
    writer.flush()


def test_a_closed_device_is_gone(engine: Engine, router: Router) -> None:
    writer = writer_to(engine, router.entry)
    router.entry.close()
    with pytest.raises(DeviceGoneError, match=r"^tun0: .*closed"):
        dispatch(engine, writer, lone(1))
    assert writer.take_back() == lone(1)


def test_a_piece_of_a_cut_packet_can_be_taken_back(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = stream(4, TCP, SIZES, first_id=1)
    writer = writer_to(engine, router.entry, timeout=0)
    rule = times(1, errno.EINVAL)
    Writev(monkeypatch, lambda h, p: rule(h, p) or (0 if h.gso_type else errno.EAGAIN))
    with pytest.raises(DeviceError):
        dispatch(engine, writer, packets)
    assert writer.take_back() == packets


def test_any_other_error_is_told_with_the_name_and_loses_nothing(
    engine: Engine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_to(engine, router.entry)
    Writev(monkeypatch, times(1, errno.EPERM))
    with pytest.raises(DeviceError, match=r"^tun0: cannot be written to"):
        dispatch(engine, writer, lone(2))
    writer.flush()
    assert router.read(2) == routed(lone(2))
