"""What `Live` counts against what was sent, and when it shows it."""

import errno
import json
import queue
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from netstack_gro import live as live_module
from netstack_gro.dispatchers.base import DispatcherStats
from netstack_gro.dispatchers.ring import RingStats
from netstack_gro.dispatchers.slab import LiveStats
from netstack_gro.errors import DeviceDownError, DeviceError, NotPermittedError
from netstack_gro.live import Live, observe_udp
from netstack_gro.samples import PacketMeter, PacketSample, Sample
from netstack_gro.stats import Stats
from netstack_gro.verdicts import Verdict
from tests import rights
from tests.engines import Engine
from tests.requirements import lacks_root, lacks_tun, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="live dispatchers need Linux")

PATIENCE_S = 10.0
PORT = 9000


# --- when it shows what came ---------------------------------------------------------------------


@dataclass
class Scripted:
    """A dispatcher whose calls take so many seconds, all that they may (None), or raise."""

    calls: list[float | Exception | None]
    now: float = 1000.0
    name: str = "scripted"
    timeouts: list[float] = field(default_factory=list)
    packets: int = 0
    closed: bool = False

    @property
    def exhausted(self) -> bool:
        return not self.calls

    @property
    def stats(self) -> DispatcherStats:
        return DispatcherStats(engine=Stats(packets_in=self.packets), dropped=2 * self.packets)

    def monotonic(self) -> float:
        return self.now

    def dispatch_once(self, timeout: float | None = None) -> int:
        assert timeout is not None
        self.timeouts.append(timeout)
        taken = self.calls.pop(0)
        if isinstance(taken, Exception):
            raise taken
        self.now += timeout if taken is None else taken
        self.packets += 1
        return 1

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def run(
    calls: list[float | Exception | None], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Scripted, Live, list[PacketSample], PacketSample]:
    """A scripted run, to its end: what was shown, and the total."""
    scripted = Scripted(calls)
    monkeypatch.setattr(live_module, "time", scripted)
    shown: list[Any] = []
    with Live("recvmmsg", scripted, PacketMeter()) as live:
        total: Any = live.run(lambda sample, total: shown.append(sample), **options)
    assert scripted.closed
    return scripted, live, shown, total


@pytest.mark.engineless
def test_a_sample_is_shown_every_second_and_once_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted, _, shown, total = run([None, None, 0.25, 0.25], monkeypatch)
    assert [sample.elapsed for sample in shown] == [1.0, 2.0, 2.5]
    assert [sample.interval for sample in shown] == [1.0, 1.0, 0.5]
    assert [sample.packets_in for sample in shown] == [1, 1, 2]
    assert [sample.dropped_by_kernel for sample in shown] == [2, 2, 4]
    assert scripted.timeouts == [1.0, 1.0, 1.0, 0.75]
    assert (total.elapsed, total.interval, total.packets_in) == (2.5, 2.5, 4)
    assert total.summary
    assert not any(sample.summary for sample in shown)


@pytest.mark.engineless
def test_seconds_that_a_call_or_a_display_took_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted, _, shown, _ = run([3.5, None, None], monkeypatch)
    assert [sample.elapsed for sample in shown] == [3.5, 4.0, 5.0, 5.0]
    assert scripted.timeouts == [1.0, 0.5, 1.0]


@pytest.mark.engineless
def test_it_ends_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted, _, shown, total = run([None] * 9, monkeypatch, every=0.5, duration=1.25)
    assert [sample.elapsed for sample in shown] == [0.5, 1.0, 1.25]
    assert scripted.timeouts == [0.5, 0.5, 0.25]
    assert total.elapsed == 1.25


@pytest.mark.engineless
def test_a_device_that_goes_down_is_waited_for_and_one_that_fails_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    down = DeviceDownError("eth0", errno.ENETDOWN, "cannot be read: it is down")
    broken = DeviceError("eth0", errno.EIO, "cannot be read: it is broken")
    notices: list[str] = []
    _, live, shown, total = run([0.5, down, 0.25, broken, 1.0], monkeypatch, notice=notices.append)
    assert notices == ["eth0: cannot be read: it is down; its packets are waited for"]
    assert live.failure is broken
    assert total.packets_in == 2
    assert [sample.elapsed for sample in shown] == [0.75]


@pytest.mark.engineless
def test_what_shows_a_sample_may_stop_it_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted([None] * 9)
    monkeypatch.setattr(live_module, "time", scripted)
    live = Live("recvmmsg", scripted, PacketMeter())
    live.stop()
    assert live.run(lambda sample, total: None).elapsed == 0
    live.run(lambda sample, total: live.stop())
    assert len(scripted.calls) == 8

    def fail(sample: Sample, total: Sample) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        live.run(fail)


@pytest.mark.engineless
def test_rates_are_of_the_interval_and_json_has_them() -> None:
    sample = PacketSample(
        source="eth0",
        dispatcher="ring",
        elapsed=10.0,
        interval=0.5,
        packets_in=100,
        bytes_in=1000,
        packets_out=10,
        bytes_out=900,
        super_packets=8,
        segments=98,
        dropped_by_kernel=3,
        losses={"truncated": 2, "freezes": 5},
    )
    assert sample.lost == 5
    values = json.loads(sample.to_json())
    assert values["event"] == "sample"
    assert values["packets_per_second_in"] == 200
    assert values["bits_per_second_in"] == 16_000
    assert values["packets_per_second_out"] == 20
    assert values["bits_per_second_out"] == 14_400
    assert values["segments_per_super_packet"] == 12.25
    assert values["losses"] == {"truncated": 2, "freezes": 5}
    nothing = PacketSample(source="", dispatcher="tun", elapsed=0.0, interval=0.0, summary=True)
    assert json.loads(nothing.to_json())["segments_per_super_packet"] is None
    assert json.loads(nothing.to_json())["packets_per_second_in"] == 0


@pytest.mark.engineless
def test_statistics_show_what_is_not_0() -> None:
    engine = Stats(packets_in=3, verdicts={**Stats().verdicts, Verdict.MERGED: 3})
    assert repr(DispatcherStats()) == "DispatcherStats(engine=Stats())"
    assert repr(LiveStats(engine=engine, runts=2)) == (
        "LiveStats(engine=Stats(packets_in=3, verdicts={MERGED: 3}), runts=2)"
    )
    assert repr(RingStats(dropped=1)) == "RingStats(engine=Stats(), dropped=1)"


# --- what it counts ------------------------------------------------------------------------------


@pytest.fixture
def net() -> Iterator[Any]:
    require(lacks_root())
    from tests import lab

    with lab.Lab() as network:
        yield network


def pair(net: Any) -> tuple[Any, Any]:
    """Two namespaces with a cable, on which nothing is but what a test sends to 10.0.0.2."""
    near, far = net.namespace(ipv6=False), net.namespace(ipv6=False)
    net.veth(near, "gro0", far, "gro0")
    near.address("gro0", "10.0.0.1/24")
    far.address("gro0", "10.0.0.2/24")
    near.neighbour("gro0", "10.0.0.2", far.mac("gro0"))
    far.neighbour("gro0", "10.0.0.1", near.mac("gro0"))  # to which it says that no port is open
    return near, far


def watch(
    net: Any, namespace: Any, live: Any, send: Callable[[], None], packets: int
) -> tuple[list[Any], Any]:
    """What is shown of ``send``, until so many packets were read, and the total."""
    shown: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with live:
        send()
        running = net.thread(namespace, live.run, lambda *both: shown.put(both), every=0.02)
        samples = []
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            sample, total = shown.get(timeout=PATIENCE_S)
            samples.append(sample)
            if getattr(total, "wire_packets_in", 0) + getattr(total, "datagrams", 0) >= packets:
                break
        live.stop()
        total = running.result()
    while not shown.empty():
        samples.append(shown.get()[0])
    assert live.failure is None
    return samples, total


COUNTERS = ("reads", "packets_in", "wire_packets_in", "bytes_in", "packets_out", "bytes_out")
COUNTERS += ("super_packets", "segments", "dropped_by_kernel")


def check(samples: list[Any], total: Any) -> None:
    """What holds of any counts."""
    for name in COUNTERS:
        assert sum(getattr(sample, name) for sample in samples) == getattr(total, name), name
    for names in ("verdicts", "closed", "losses"):
        for name, count in getattr(total, names).items():
            assert sum(getattr(sample, names).get(name, 0) for sample in samples) == count
    assert sum(total.verdicts.values()) == total.packets_in
    assert total.packets_out == total.packets_in - total.segments + total.super_packets
    assert total.verdicts.get("merged", 0) == total.segments
    assert max(sample.largest_super_packet for sample in samples) == total.largest_super_packet
    assert total.losses == {}
    assert total.dropped_by_kernel == 0


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("udp", [True, False])
def test_an_interface_is_counted_packet_for_packet(
    net: Any, engine: Engine, ring: bool, udp: bool
) -> None:
    near, far = pair(net)
    with far:
        live = engine.module("live").observe_interface("gro0", ring=ring, udp=udp)

    def send() -> None:
        with near.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect(("10.0.0.2", PORT))  # it counts its IP IDs itself then
            for _ in range(600):
                sender.send(bytes(500))

    with far.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("10.0.0.2", PORT))
        samples, total = watch(net, far, live, send, 600)
    check(samples, total)
    assert (total.packets_in, total.wire_packets_in) == (600, 600)
    assert total.bytes_in == 600 * (14 + 20 + 8 + 500)
    assert (total.source, total.dispatcher) == ("gro0", "ring" if ring else "recvmmsg")
    assert bool(total.super_packets) == udp


def test_what_the_kernel_merged_before_counts_as_the_packets_it_stands_for(
    net: Any, engine: Engine
) -> None:
    from tests.tuns import send_train

    near, far = pair(net)
    with far:
        live = engine.module("live").observe_interface("gro0")

    def send() -> None:
        with near.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(30):
                send_train(sender, "10.0.0.2", bytes(950), 100)

    samples, total = watch(net, far, live, send, 300)
    check(samples, total)
    assert total.packets_in == 30
    assert total.wire_packets_in == 300
    assert total.verdicts == {"already_aggregated": 30}


def test_a_lone_super_packet_of_the_kernel_is_counted_as_what_it_is(
    net: Any, engine: Engine
) -> None:
    from tests.tuns import send_train

    near, far = pair(net)
    with far:
        live = engine.module("live").observe_interface("gro0", batch=1)

    def send() -> None:
        with near.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(5):
                send_train(sender, "10.0.0.2", bytes(950), 100)
                sender.sendto(bytes(100), ("10.0.0.2", PORT))

    samples, total = watch(net, far, live, send, 55)
    check(samples, total)
    assert total.verdicts == {"already_aggregated": 5, "alone": 5}


def test_what_the_advice_switches_off_has_packets_come_as_on_a_wire(
    net: Any, engine: Engine
) -> None:
    from tests.tuns import send_train

    near, far = pair(net)
    near.offloads("gro0", tso=False, gso=False, uso=False)
    with far:
        live = engine.module("live").observe_interface("gro0")

    def send() -> None:
        with near.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(5):
                send_train(sender, "10.0.0.2", bytes(950), 100)

    samples, total = watch(net, far, live, send, 50)
    check(samples, total)
    assert total.packets_in == total.wire_packets_in == 50
    assert "already_aggregated" not in total.verdicts


def test_a_tun_device_is_made_and_gone_afterwards(net: Any, engine: Engine) -> None:
    require(lacks_tun())
    near = net.namespace(ipv6=False)
    with near:
        live = engine.module("live").observe_tun("gro0")
    near.address("gro0", "10.0.0.1/24")
    near.up("gro0")

    def send() -> None:
        with near.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(300):
                sender.sendto(bytes(100), ("10.0.0.2", PORT))

    samples, total = watch(net, near, live, send, 300)
    check(samples, total)
    assert (total.packets_in, total.bytes_in) == (300, 300 * 128)
    assert near.interfaces() == ["lo"]


def test_what_a_full_tun_device_drops_is_counted_from_when_it_was_attached(
    net: Any, engine: Engine
) -> None:
    require(lacks_tun())
    from netstack_gro.dispatchers.tun_device import TunDevice

    near = net.namespace(ipv6=False)

    def send() -> None:
        with near.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(900):
                sender.sendto(bytes(100), ("10.0.0.2", PORT))

    with near, TunDevice("gro0", persist=True):
        near.address("gro0", "10.0.0.1/24")
        near.up("gro0")
        send()
    before = near.traffic("gro0")["tx_dropped"]
    assert before > 0
    with near:
        live = engine.module("live").observe_tun("gro0")
    _, total = watch(net, near, live, send, 1)
    assert total.dropped_by_kernel == near.traffic("gro0")["tx_dropped"] - before
    assert total.packets_in + total.dropped_by_kernel == 900


@pytest.mark.parametrize("kind", ["tun", "tap"])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.engineless
def test_a_device_that_exists_is_attached_whatever_it_is(
    net: Any, kind: Any, several: bool
) -> None:
    require(lacks_tun())
    from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads

    with net.namespace() as here:
        TunDevice("gro0", kind=kind, multi_queue=several, persist=True).close()
        with live_module.observe_tun("gro0") as live:
            dispatcher: Any = live.dispatcher
            assert dispatcher.device.kind == kind
            assert dispatcher.device.offloads == TunOffloads.none()
        assert here.interfaces() == ["lo", "gro0"]
        with live_module.observe_tun("gro0", offloads=True) as live:
            dispatcher = live.dispatcher
            assert dispatcher.device.offloads.tso
        with pytest.raises(DeviceError, match=r"^lo: cannot be attached as a TUN device"):
            live_module.observe_tun("lo")


@pytest.mark.parametrize("gro", [True, False])
def test_trains_are_counted_with_their_sizes(net: Any, engine: Engine, gro: bool) -> None:
    from tests.tuns import send_train

    here = net.namespace()
    with here:
        live = engine.module("live").observe_udp(("127.0.0.1", 0), gro=gro)
        port = live.dispatcher.address[1]

    def send() -> None:
        with here.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(10):
                send_train(sender, "127.0.0.1", bytes(20 * 100 + 30), 100, port=port)
            sender.sendto(b"", ("127.0.0.1", port))

    samples, total = watch(net, here, live, send, 211)
    assert (total.datagrams, total.bytes) == (211, 10 * 2030)
    assert total.sizes == {100: 200, 30: 10, 0: 1}
    assert (total.trains, total.largest_train) == ((10, 21) if gro else (0, 0))
    assert total.reads == (11 if gro else 211)
    for name in ("datagrams", "bytes", "trains", "reads"):
        assert sum(getattr(sample, name) for sample in samples) == getattr(total, name), name
    assert total.lost == 0
    assert json.loads(total.to_json())["sizes"] == {"100": 200, "30": 10, "0": 1}


@pytest.mark.engineless
def test_a_missing_right_is_named() -> None:
    require(lacks_tun())
    for function, right in (
        (lambda: live_module.observe_interface("lo"), "CAP_NET_RAW"),
        (lambda: live_module.observe_interface("lo", ring=True), "CAP_NET_RAW"),
        (lambda: live_module.observe_tun("gro-never"), "CAP_NET_ADMIN"),
    ):
        with pytest.raises(NotPermittedError) as caught:
            rights.with_only((), function)
        assert caught.value.right == right
        assert right in str(caught.value)


@pytest.mark.engineless
def test_a_udp_socket_takes_no_right() -> None:
    with observe_udp(("127.0.0.1", 0)) as live:
        assert live.name.startswith("udp 127.0.0.1:")
