"""pmd-pytcp: its receive path behind an engine, in place of one read and one traversal a packet.

    made = stack.initialize_interface__tun("tun0")
    stack.init(**made, ip4_host=Ip4IfAddr("10.0.0.2/24"))
    interface, = stack.interfaces.values()
    attach(interface, lambda hook: ReadvDispatcher(os.dup(made["fd"]), hook, prefix=4))
    await stack.start()

An interface of pmd-pytcp (0.3.8) reads a packet per readiness callback and carries each through
parsers and a state machine in Python, which takes some hundred microseconds. `attach` has a
dispatcher of ours read for it: what came is merged, and super-packets go the same way. What the
interface sends does not change. Nothing of pmd-pytcp is imported here.

The stack counts packets to know when to acknowledge. `Sessions` adds the segments of a super-packet
to the count of its connection, which then acknowledges at once; where that cannot be done, a
super-packet is delivered in two pieces (`netstack_gro.hooks.head_and_rest`).

An application of the stack runs in the same event loop, and gets its turn after each batch. The
stack announces no window when data is read, only with its next acknowledgement. So a batch should
be well below the receive window: at the default of 65,535 bytes ``GroConfig(capacity=8)``, or raise
``tcp.rcv_wnd_max``.
"""

import asyncio
import errno
import logging
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from netstack_gro.config import MAX_IP_LENGTH, Limits, within
from netstack_gro.errors import DeviceDownError, DeviceError, device_error
from netstack_gro.hooks.pieces import head_and_rest
from netstack_gro.hooks.room import FULL, Room, check_seconds
from netstack_gro.hooks.tun_frames import ip_start
from netstack_gro.packet import Packet

if TYPE_CHECKING:
    from netstack_gro.dispatchers.live import LiveSource
    from netstack_gro.hook import Hook

__all__ = ["MessageSink", "ReceiveRing", "Sessions", "StackHook", "attach"]

_IN_FRONT = (b"\0\0\x08\x00", b"\0\0\x86\xdd")  # struct tun_pi of IPv4 and IPv6
_log = logging.getLogger("netstack_gro")


class StackHook:
    """StackHook(receive): hands packets to a stack one by one, as bytes, in order.

    receive: takes a packet from its link header on.
    tell: asked before a TCP super-packet is delivered, with it and its bytes: whether the stack
        has been told its ``gso_segs`` and will acknowledge at once. Such a packet comes whole.
    pieces: whether TCP super-packets come in two otherwise, so that a stack which counts packets
        acknowledges at once; False for one that looks at the length.
    max_size: bytes of IP that the stack takes at most.
    packet_information: whether each packet has a struct tun_pi in front (4 bytes: no flags, and the
        EtherType in network byte order), as a TUN opened without IFF_NO_PI gives. Only with bare
        IP packets.

    As a sink it takes no UDP super-packets and wants complete checksums. What ``receive`` raises
    propagates; the packets behind are lost to that flush, as with any hook.
    """

    __slots__ = ("_information", "_pieces", "_receive", "_tell", "limits")

    limits: Limits

    def __init__(
        self,
        receive: Callable[[bytes], object],
        *,
        tell: Callable[[Packet, bytes], bool] | None = None,
        pieces: bool = True,
        max_size: int = MAX_IP_LENGTH,
        packet_information: bool = False,
    ) -> None:
        if not callable(receive):
            raise TypeError(f"receive: a callable is required, not {type(receive).__name__!r}")
        self._receive = receive
        self._tell = tell
        self._pieces = bool(pieces)
        self._information = bool(packet_information)
        self.limits = Limits(udp=False, max_size=max_size)

    def __call__(self, packets: list[Packet]) -> None:
        """Take a flush."""
        receive = self._receive
        for packet in packets:
            for piece in self._pieces_of(packet):
                receive(_IN_FRONT[piece[0] >> 4 == 6] + piece if self._information else piece)

    def _pieces_of(self, packet: Packet) -> list[bytes]:
        if not packet.gso_size:
            return [bytes(packet)]
        if self._tell is not None:
            data = bytes(packet)
            if self._tell(packet, data):
                return [data]
        return head_and_rest(packet) if self._pieces else [bytes(packet)]


class Sessions:
    """Tells connections of pmd-pytcp how many segments a super-packet stands for.

    sockets: the stack's table, ``pmd_pytcp.stack.sockets``.
    """

    def __init__(self, sockets: Any) -> None:
        self._sockets = sockets
        self._known: dict[bytes, Any] = {}

    def tell(self, packet: Packet, data: bytes) -> bool:
        """Count a super-packet's segments, but for the one that the stack counts itself."""
        flow = _flow(packet, data)
        found = self._known.get(flow)
        if found is None or self._sockets.get(found.socket_id) is not found:
            found = self._find(flow)
            if found is None:
                return False
        session = found.tcp_session
        if not hasattr(session, "_delayed_ack_segments_pending"):
            return False
        session._delayed_ack_segments_pending += packet.gso_segs - 1
        return True

    def _find(self, flow: bytes) -> Any:
        """The socket of a flow, and those of all others that are there now."""
        self._known = {}
        for candidate in self._sockets.values():
            if getattr(candidate, "tcp_session", None) is None:
                continue
            remote = candidate._remote_port.to_bytes(2, "big")
            ports = remote + candidate._local_port.to_bytes(2, "big")
            addresses = bytes(candidate._remote_ip_address) + bytes(candidate._local_ip_address)
            self._known[addresses + ports] = candidate
        return self._known.get(flow)


def _flow(packet: Packet, data: bytes) -> bytes:
    """Source and destination address, source and destination port."""
    transport = packet.virtio_header().csum_start
    at = ip_start(data, packet.link)
    where = slice(at + 12, at + 20) if data[at] >> 4 == 4 else slice(at + 8, at + 40)
    return data[where] + data[transport : transport + 4]


class Ring(Protocol):
    """What is needed of pmd-pytcp's RxRing (pmd_pytcp/runtime/rx_ring.py)."""

    def _handle_frame(self, frame: bytes, /) -> None: ...
    def _count_os_error(self, error: OSError, /) -> None: ...


class ReceiveRing:
    """Stands in for an interface's RxRing: the same methods, and a dispatcher that reads.

    Packets are counted, logged and delivered as the former ring does it. An interface that is
    down is read again when it is up; one that is gone is not. `dispatcher` is the source.
    """

    def __init__(
        self,
        ring: Ring,
        open_source: "Callable[[Hook], LiveSource]",
        *,
        tell: Callable[[Packet, bytes], bool] | None = None,
        packet_information: bool = False,
    ) -> None:
        self._ring = ring
        self.dispatcher: LiveSource = open_source(
            StackHook(ring._handle_frame, tell=tell, packet_information=packet_information)
        )
        self._reading = ExitStack()

    def __getattr__(self, name: str) -> Any:
        """Counters, and whatever else is asked of a ring."""
        return getattr(self._ring, name)

    def start(self) -> None:
        """Read in the running event loop, a batch a turn. The stack calls it."""
        loop = asyncio.get_running_loop()
        for descriptor in self._reading.enter_context(self.dispatcher.watched()):
            loop.add_reader(descriptor, self._turn)
            self._reading.callback(loop.remove_reader, descriptor)

    def stop(self) -> None:
        """Read no more, and close the dispatcher. The stack calls it."""
        self._reading.close()
        self.dispatcher.close()

    def _turn(self) -> None:
        try:
            _, over = self.dispatcher.turn(1)
        except DeviceError as error:
            self._ring._count_os_error(error)
            if isinstance(error, DeviceDownError):
                return  # it is readable again when it is up, or gone
            _log.error("%s: not read any more: %s", self.dispatcher.name, error)
            over = True
        if over:
            self._reading.close()


def attach(interface: Any, open_source: "Callable[[Hook], LiveSource]") -> ReceiveRing:
    """Have an interface of pmd-pytcp that was not started yet read through a dispatcher.

    interface: a packet handler, as ``stack.interfaces`` has them.
    open_source: takes the hook and returns the dispatcher, which the ring owns from now on. It has
        to give IP packets to an interface of layer 3 (a TUN), Ethernet frames to one of layer 2.

    Raises TypeError for something that has no receive ring, and whatever ``open_source`` raises.
    """
    ring = getattr(interface, "_rx_ring", None)
    if ring is None or not hasattr(ring, "_handle_frame"):
        raise TypeError(
            "interface: a packet handler of pmd-pytcp 0.3.8 with a receive ring is required, not "
            f"{type(interface).__name__!r}"
        )
    layer = getattr(getattr(interface, "_interface_layer", None), "name", "")
    sockets = sys.modules["pmd_pytcp.stack"].sockets  # loaded, or there would be no interface
    replaced = ReceiveRing(
        ring, open_source, tell=Sessions(sockets).tell, packet_information=layer == "L3"
    )
    interface._rx_ring = replaced
    return replaced


class MessageSink:
    """MessageSink(sock): each packet as one message of a datagram or seqpacket socket.

    For a stack at the other end of a socket pair that reads a packet per message. Packets go in
    as they come, and are merged in front of the socket, whose queue may hold ten messages only
    (net.unix.max_dgram_qlen):

        gro = GroDispatcher(MessageSink(ours), GroConfig(link="ip"))
        for packet in decrypted:
            gro.enqueue(packet)
        gro.flush()

    sock: stays the caller's. pieces, max_size: as for `StackHook`. The receiver has to read with a
        buffer of ``max_size`` bytes: what is longer would be cut off.
    backlog: bytes that may wait where the socket is full. Each call, and `flush`, sends what waits
        first, so the order holds; what is beyond is dropped and counted in `dropped`.
    timeout: seconds that one call waits in all for room.

    A packet that is longer than the socket takes at all (EMSGSIZE) is dropped and counted as well.
    Raises DeviceError when the socket cannot be written for another reason than want of room; what
    was not sent waits. ConfigError for a parameter out of range, by its name.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        pieces: bool = True,
        max_size: int = MAX_IP_LENGTH,
        backlog: int = 1 << 20,
        timeout: float = 0.05,
    ) -> None:
        self._socket = sock
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._backlog = within("backlog", backlog, 0, 1 << 40)
        check_seconds("timeout", timeout)
        self._room = Room(timeout)
        self._hook = StackHook(self._take, pieces=pieces, max_size=max_size)
        self.limits: Limits = self._hook.limits
        self.sent: int = 0
        self.dropped: int = 0

    @property
    def waiting(self) -> int:
        """Packets in the backlog."""
        return len(self._waiting)

    def __call__(self, packets: list[Packet]) -> None:
        """Take a flush, and send what there is room for."""
        self._hook(packets)
        self.flush()

    def flush(self) -> int:
        """Send what waits, as far as there is room; how many packets still wait."""
        self._room.begin()
        try:
            while self._waiting and self._send(self._waiting[0]):
                self._size -= len(self._waiting.popleft())
        finally:
            while self._size > self._backlog:
                self._size -= len(self._waiting.pop())
                self.dropped += 1
        return len(self._waiting)

    def _send(self, data: bytes) -> bool:
        """Whether a packet is done with; False where there is no room for it."""
        while True:
            try:
                self._socket.send(data, socket.MSG_DONTWAIT)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self.dropped += 1
                    return True
                descriptor = self._socket.fileno()
                if error.errno not in FULL:
                    name = f"socket {descriptor}"
                    raise device_error(name, error, "cannot be sent to") from None
                if not self._room.wait(descriptor, error.errno):
                    return False
            else:
                self.sent += 1
                return True

    def _take(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
