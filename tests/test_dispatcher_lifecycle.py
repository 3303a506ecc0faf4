"""Opening, running, idling, stopping and closing, of every kind of dispatcher and of many."""

import gc
import itertools
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from netstack_gro.errors import DeviceError, GroError
from tests import builders, lab
from tests.engines import Engine
from tests.requirements import lacks_tun, require
from tests.test_live_misuse import maker

PACKETS = 50
PAYLOAD = bytes(100)
STREAM = [
    builders.tcp4(PAYLOAD, seq=1 + len(PAYLOAD) * number, ident=number) for number in range(PACKETS)
]
FRAMES = [builders.ethernet(packet) for packet in STREAM]
ETH_P_IP = 0x0800  # include/uapi/linux/if_ether.h

POLL_FOR_EVER = "0xffffffff"  # a timeout of -1 milliseconds, an int
SYSCALL_POLL = {"x86_64": "7", "aarch64": "73"}  # poll; ppoll: include/uapi/asm-generic/unistd.h

INTERFACES = ["lo", "in", "out"]

Hook = Callable[[list[Any]], None]
Opened = tuple[Any, Callable[[], None]]
"""A dispatcher, and what has `PACKETS` packets sent to it."""


class Place:
    """Where dispatchers are opened: a namespace with a veth, ``out`` to ``in``."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.stack = ExitStack()
        self.net = self.stack.enter_context(lab.Lab())
        self.here = self.net.namespace(ipv6=False)
        self.net.veth(self.here, "out", self.here, "in")
        self.sender = self.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.sender.bind(("out", 0))
        self.ends = self.stack.enter_context(ExitStack())
        self._numbers = itertools.count()
        self._kinds: dict[str, Callable[[Hook], Opened]] = {
            "readv": self._readv,
            "recvmmsg": self._recvmmsg,
            "interface": self._interface,
            "ring": self._ring,
            "tun": self._tun,
            "udp": self._udp,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def forget(self) -> None:
        """Close the other ends of what was opened."""
        self.ends.close()

    def socket(self, family: int, kind: int) -> socket.socket:
        return self.stack.enter_context(self.here.socket(family, kind))

    def open(self, kind: str, hook: Hook) -> Opened:
        with self.here:
            return self._kinds[kind](hook)

    def _readv(self, hook: Hook) -> Opened:
        make = self.engine.module("dispatchers.readv").ReadvDispatcher
        return self._behind_a_socket(make, hook)

    def _recvmmsg(self, hook: Hook) -> Opened:
        make = self.engine.module("dispatchers.recvmmsg").RecvMmsgDispatcher
        return self._behind_a_socket(make, hook)

    def _behind_a_socket(self, make: Callable[..., Any], hook: Hook) -> Opened:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)

        def feed() -> None:
            with suppress(BlockingIOError):  # full: there is enough to read
                for packet in STREAM:
                    ours.send(packet)

        self.ends.callback(ours.close)
        return make(theirs, hook), feed

    def _interface(self, hook: Hook) -> Opened:
        make = self.engine.module("dispatchers.recvmmsg").RecvMmsgDispatcher
        return make("in", hook), self._send_frames

    def _ring(self, hook: Hook) -> Opened:
        make = self.engine.module("dispatchers.ring").PacketRingDispatcher
        return make("in", hook), self._send_frames

    def _send_frames(self) -> None:
        for frame in FRAMES:
            self.sender.send(frame)

    def _tun(self, hook: Hook) -> Opened:
        name = f"tun{next(self._numbers)}"
        dispatcher = self.engine.module("dispatchers.tun").TunDispatcher(name, hook)
        dispatcher.device.up()

        def feed() -> None:
            with self.here.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
                sender.bind((name, ETH_P_IP))
                for packet in STREAM:
                    sender.send(packet)

        return dispatcher, feed

    def _udp(self, hook: Hook) -> Opened:
        make = self.engine.module("dispatchers.udp").UdpDispatcher
        dispatcher = make(("127.0.0.1", 0), getattr(hook, "trains", hook))
        address = dispatcher.address

        def feed() -> None:
            with self.here.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for _ in range(PACKETS):
                    sender.sendto(PAYLOAD, address)

        return dispatcher, feed


ROUNDS = 4
OPENS = {"readv": 3600, "recvmmsg": 3600, "udp": 2580, "interface": 100, "tun": 80, "ring": 40}
"""How often each kind is opened and closed, 10,000 times in all. The kernel takes its time for the
end of a packet socket and of a device."""

KINDS = tuple(OPENS)


@pytest.fixture
def place(engine: Engine) -> Iterator[Place]:
    require(lacks_tun())
    with Place(engine) as made:
        yield made


class Tally:
    """A hook that counts packets, and says when there are enough."""

    def __init__(self) -> None:
        self.packets = 0
        self.complete = threading.Event()

    def __call__(self, packets: list[Any]) -> None:
        self._add(sum(packet.packets for packet in packets))

    def trains(self, trains: list[Any]) -> None:
        self._add(sum(map(len, trains)))

    def _add(self, packets: int) -> None:
        self.packets += packets
        if self.packets >= PACKETS:
            self.complete.set()


def waits_for_ever(thread: threading.Thread) -> bool:
    """Whether the kernel has the thread in poll(2) without a timeout."""
    call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()
    number = SYSCALL_POLL[os.uname().machine]
    return call[0] == number and call[3] == (POLL_FOR_EVER if number == "7" else "0x0")


def switches(thread: threading.Thread) -> int:
    """How often the thread has been given a processor and has given it back."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return sum(
        int(line.split()[1]) for line in status.splitlines() if "voluntary_ctxt_switches" in line
    )


class Running:
    """Dispatchers of the given kinds, each run by a thread of its own until `stop`."""

    def __init__(self, place: Place, kinds: Sequence[str]) -> None:
        self.kinds = kinds
        self.tallies = [Tally() for _ in kinds]
        opened = [place.open(kind, tally) for kind, tally in zip(kinds, self.tallies, strict=True)]
        self.dispatchers = [dispatcher for dispatcher, _feed in opened]
        self._feeds = dict.fromkeys(feed for _dispatcher, feed in opened)
        self.threads = [threading.Thread(target=one.run) for one in self.dispatchers]
        place.stack.callback(self._end)
        for thread in self.threads:
            thread.start()

    def feed(self) -> None:
        """Send all of them their packets, and wait until those were delivered."""
        for feed in self._feeds:
            feed()
        for kind, tally in zip(self.kinds, self.tallies, strict=True):
            assert tally.complete.wait(10), f"{kind}: {tally.packets} of {PACKETS} packets"

    @contextmanager
    def flooded(self) -> Iterator[None]:
        """Have them fed without a pause."""
        over = threading.Event()

        def flood() -> None:
            while not over.is_set():
                for feed in self._feeds:
                    feed()

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            yield
        finally:
            over.set()
            flooding.join()

    def stop_all(self) -> list[float]:
        """Stop one after the other; the seconds until each thread had ended."""
        took = []
        for dispatcher, thread in zip(self.dispatchers, self.threads, strict=True):
            started = time.monotonic()
            dispatcher.stop()
            thread.join(10)
            took.append(time.monotonic() - started)
            assert not thread.is_alive()
        return took

    def await_idleness(self) -> None:
        """Until every thread waits in the kernel."""
        until = time.monotonic() + 10
        for kind, thread in zip(self.kinds, self.threads, strict=True):
            while not waits_for_ever(thread):
                assert time.monotonic() < until, f"{kind} does not wait without a timeout"
                time.sleep(0.001)

    def _end(self) -> None:
        for dispatcher, thread in zip(self.dispatchers, self.threads, strict=True):
            dispatcher.close()
            thread.join(10)


def test_32_dispatchers_on_32_threads_each_have_an_engine_and_stop_within_100_ms(
    place: Place,
) -> None:
    running = Running(place, list(itertools.islice(itertools.cycle(KINDS), 32)))
    running.feed()
    engines = [one.gro for one in running.dispatchers if hasattr(one, "gro")]
    assert len(set(map(id, engines))) == len(engines)
    assert all(engine.stats.packets_in == PACKETS for engine in engines)
    assert max(running.stop_all()) < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_under_load_a_run_ends_within_100_ms_too(place: Place, kind: str) -> None:
    running = Running(place, [kind])
    with running.flooded():
        assert running.tallies[0].complete.wait(10)
        assert max(running.stop_all()) < 0.1


def test_an_idle_dispatcher_is_never_woken(place: Place) -> None:
    running = Running(place, KINDS)
    running.feed()
    running.await_idleness()
    before = [switches(thread) for thread in running.threads]
    time.sleep(0.5)
    after = [switches(thread) for thread in running.threads]
    assert dict(zip(KINDS, after, strict=True)) == dict(zip(KINDS, before, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_closed_by_another_thread_a_run_ends_and_its_descriptor_is_gone(
    place: Place, kind: str
) -> None:
    before = descriptors()
    running = Running(place, [kind])
    running.await_idleness()
    (dispatcher,), (thread,) = running.dispatchers, running.threads
    started = time.monotonic()
    dispatcher.close()
    thread.join(10)
    assert not thread.is_alive()
    assert time.monotonic() - started < 0.1
    assert dispatcher.closed
    del dispatcher, running
    place.forget()
    assert descriptors() == before


def descriptors() -> set[str]:
    """The open descriptors of this process."""
    gc.collect()
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def refused(place: Place, kind: str) -> None:
    """An opening that fails, as late as it can."""
    with place.here:
        if kind in {"readv", "recvmmsg"}:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            module = place.engine.module(f"dispatchers.{kind}")
            make = module.ReadvDispatcher if kind == "readv" else module.RecvMmsgDispatcher
            with ours:
                make(theirs, print, frame_size=0)
        elif kind == "interface":
            place.engine.module("dispatchers.recvmmsg").RecvMmsgDispatcher("gone", print)
        elif kind == "ring":
            place.engine.module("dispatchers.ring").PacketRingDispatcher("in", print, "config")
        elif kind == "tun":
            place.engine.module("dispatchers.tun").TunDispatcher("tun0", print, frame_size=0)
        else:
            place.engine.module("dispatchers.udp").UdpDispatcher(("192.0.2.1", 1), print)


@pytest.mark.parametrize("kind", KINDS)
def test_an_opening_that_is_refused_leaves_nothing_open(place: Place, kind: str) -> None:
    before = descriptors()
    for _ in range(3):
        with pytest.raises((GroError, TypeError)):
            refused(place, kind)
    assert descriptors() == before
    assert place.here.interfaces() == INTERFACES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cycle", [False, True])
def test_one_that_nobody_has_any_more_warns_and_is_closed(
    place: Place, kind: str, cycle: bool
) -> None:
    before = descriptors()
    hook = Tally()
    dispatcher, _feed = place.open(kind, hook)
    if cycle:
        hook.dispatcher = dispatcher  # type: ignore[attr-defined]
    name = re.escape(dispatcher.name)
    dropped = [dispatcher]
    del dispatcher, hook

    def drop() -> None:
        dropped.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match=f"^{name}: .* was never closed"):
        drop()
    place.forget()
    assert descriptors() == before
    assert place.here.interfaces() == INTERFACES


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@contextmanager
def at_most_more_descriptors(count: int) -> Iterator[None]:
    """Within, only so many can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in itertools.count() if not is_open(number))
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", ["readv", "recvmmsg", "interface", "ring"])
def test_without_descriptors_it_is_the_device_that_cannot_be_opened(
    place: Place, kind: str
) -> None:
    make = maker("recvmmsg" if kind == "interface" else kind, place.engine)

    def fails(more: int) -> bool:
        """Whether it cannot be opened with so many more descriptors, as it should be."""
        source: Any = "in"
        before = descriptors()
        if kind in {"readv", "recvmmsg"}:
            source, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            place.ends.callback(other.close)
        with suppress(DeviceError), at_most_more_descriptors(more):
            make(source, print).close()
            return False
        place.forget()
        assert descriptors() == before
        return True

    with place.here:
        assert fails(0)
        assert not all(map(fails, range(9)))


@pytest.mark.parametrize("kind", ["interface", "ring"])
def test_counters_are_not_asked_of_a_descriptor_that_is_closed_meanwhile(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher, _feed = place.open(kind, print)
    number = dispatcher.fileno()
    counters = place.engine.module("dispatchers.packet_socket").PacketCounters
    read = counters.read
    closing = threading.Thread(target=dispatcher.close)
    seen = []

    def slowly(self: Any, descriptor: int) -> None:
        if threading.current_thread() is not closing:
            closing.start()
            closing.join(0.2)  # which it does not, while this is going on
            os.fstat(descriptor)
        seen.append(descriptor)
        read(self, descriptor)

    monkeypatch.setattr(counters, "read", slowly)
    assert dispatcher.stats.dropped == 0
    closing.join(10)
    assert not closing.is_alive()
    assert dispatcher.stats.dropped == 0
    assert seen == [number, number]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_opens_and_closes_leave_no_descriptor_and_no_memory(
    place: Place, kind: str
) -> None:
    def open_and_close(times: int) -> list[int]:
        for _ in range(times):
            dispatcher, _feed = place.open(kind, print)
            dispatcher.close()
            place.forget()
        gc.collect()
        return [sys.getallocatedblocks(), *memory()]

    times = OPENS[kind] // ROUNDS
    open_and_close(times)
    before = descriptors()
    seen = [open_and_close(times) for _ in range(ROUNDS)]
    assert descriptors() == before
    # What is left by every opening grows in every round; all else now and then.
    growth = [
        min(after - before for before, after in itertools.pairwise(column))
        for column in zip(*seen, strict=True)
    ]
    blocks, virtual, resident = growth
    assert blocks < times / 2 + 10
    assert virtual < times * 1024
    assert resident < times * 1024


def memory() -> tuple[int, int]:
    """Bytes of address space that this process has, and of memory that it occupies."""
    size, resident, *_ = Path("/proc/self/statm").read_text().split()
    page = resource.getpagesize()
    return int(size) * page, int(resident) * page
