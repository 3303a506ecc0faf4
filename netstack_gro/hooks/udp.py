"""UdpTrainSender: sends datagrams in trains, which the kernel or the device cuts (UDP_SEGMENT).

    with UdpTrainSender(sock) as sender:
        sender.send([datagram, ...], ("192.0.2.1", 4433))

Behind an engine it is a sink, the outer side of a tunnel: each wire packet becomes a datagram, and
the segments of a super-packet, all of one size, a train.

    with UdpTrainSender(sock, ("192.0.2.1", 4433), transform=encrypt) as sender:
        with TunDispatcher("tun0", sender) as dispatcher:
            dispatcher.run()
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from netstack_gro.config import MAX_UDP_SEGMENTS, Limits, within
from netstack_gro.dispatchers.addresses import (
    ECN_MASK,
    Address,
    PacketInfo,
    encode_address,
    outgoing_control,
)
from netstack_gro.dispatchers.trains import Train
from netstack_gro.dispatchers.udp_socket import (
    Given,
    adopted,
    path_mtu,
    segmentation_support,
    traffic_class,
)
from netstack_gro.errors import ConfigError, EngineStateError
from netstack_gro.hooks.room import check_seconds
from netstack_gro.hooks.udp_delivery import MAX_BYTES, Aim, Delivery, Job
from netstack_gro.packet import Packet

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["UdpSenderStats", "UdpTrainSender"]

Item: TypeAlias = Packet | Train
Peer: TypeAlias = Address | Callable[[Item], Address | None]
Transform: TypeAlias = "Callable[[Buffer], Buffer] | None"

_BACKLOG = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpSenderStats:
    """What a `UdpTrainSender` has done since it was made.

    datagrams, bytes: that the kernel took. trains: messages of several of them.
    cut: trains that were sent datagram by datagram because the kernel could not cut them.
    retries: how often a send was repeated because the kernel had no room.
    refusals: ICMP errors that the kernel told of in place of sending; it was asked again.
    refused: datagrams that it does not send at all (`UdpSendError`), and what is none or could not
        be made one: items of a hook on which ``peer`` or ``transform`` raised.
    dropped: datagrams that were more than the backlog may hold.
    """

    datagrams: int = 0
    bytes: int = 0
    trains: int = 0
    cut: int = 0
    retries: int = 0
    refusals: int = 0
    refused: int = 0
    dropped: int = 0


class UdpTrainSender:
    """UdpTrainSender(socket, peer=None, ...): sends datagrams in as few messages as possible.

    source: a socket.socket or a `UdpDispatcher`, whose descriptor is duplicated and whose options
        are left alone; or an address to bind a new socket to.
    peer: for use as a hook: the address that everything goes to, or a callable that takes each
        `Packet` or `Train` and returns its address, or None for what is not to be sent. None:
        the peer that the socket is connected to.
    transform: for use as a hook: takes each datagram to be (bytes-like) and returns what is sent.
        Of a received train only the payloads are sent on: its packet info (the local address and
        the interface it came to) is not kept, so that the kernel chooses the source address. Bind
        the socket to one address where answers must come from it.
    gso: whether to let the kernel cut trains; None: where it can (Linux 4.18).
    max_segments: datagrams in a train, 1 to 128; kernels before 6.9 take no more than 64.
    max_bytes: of a train, to 65,507, the default; over IPv6 65,487 at most.
    never_equal_tail: have the kernel cut only trains whose last datagram is shorter than the
        others. Some drivers of Linux 7.0 and 7.1 send the last one damaged otherwise.
    timeout: seconds that one call waits in all while the kernel has no room.
    backlog: bytes of datagrams that may wait for a next call; see below.

    Datagrams are sent in the order given. Consecutive ones of equal size to one address make a
    train, which one shorter datagram may close; a longer one begins another. No option is set on
    the socket for it: the size goes with each message. Where the kernel cannot cut a train, its
    datagrams are sent one by one by the same call, and nobody is told but `stats`:

    - EIO (the route's device does not fill in checksums) and EINVAL (on some kernels): trains are
      no longer made to this host (`without_gso`), until `retry_gso`. The others are not concerned.
    - EMSGSIZE (datagrams longer than the path's MTU): this train only.
    - Where that does not help, the ECN mark is left out, and if that does, from then on always.

    No datagram is lost to an error that may pass. When the device is down (DeviceDownError) or
    gone (DeviceGoneError), or the kernel has no room for longer than ``timeout`` (DeviceError),
    what was not sent waits in the sender, which the next call sends first, and so does `flush`;
    `take_back` gives it to the caller. Only beyond ``backlog`` bytes is anything dropped. What
    the kernel refuses for good does not keep the others: `send` raises UdpSendError at the end,
    and a hook counts it; `refused` has it also where the call ended with another exception.

    The same holds for any exception, such as a KeyboardInterrupt out of a signal handler: from when
    the call has begun until it returns, each datagram has been sent, or waits, or was refused, in
    order and once. That includes those in the system call, of which the kernel itself says how far
    it came. Nothing is sent once an exception has struck; ``peer`` and ``transform`` are called
    for what is left, again for the item that they were at. An item on which they raise an
    Exception of their own is given up (`UdpSenderStats.refused`), and the others wait. Only a
    second exception, while what is left is being copied, costs that.

    One thread at a time (EngineStateError). A context manager; leaving it closes it.
    """

    __slots__ = ("_delivery", "_dscp", "_peer", "_transform", "limits")

    def __init__(
        self,
        source: Given,
        peer: Peer | None = None,
        *,
        transform: Transform = None,
        gso: bool | None = None,
        max_segments: int = 64,
        max_bytes: int = MAX_BYTES,
        never_equal_tail: bool = False,
        timeout: float = 0.05,
        backlog: int = _BACKLOG,
    ) -> None:
        within("max_segments", max_segments, 1, MAX_UDP_SEGMENTS)
        within("max_bytes", max_bytes, 1, MAX_BYTES)
        within("backlog", backlog, 0, 1 << 40)
        check_seconds("timeout", timeout)
        if not (peer is None or isinstance(peer, tuple) or callable(peer)):
            raise ConfigError("peer", f"{peer!r} is neither an address nor a callable")
        if not (transform is None or callable(transform)):
            raise ConfigError("transform", f"{transform!r} is not a callable")
        self.limits: Limits = Limits(udp=True, max_udp_segments=MAX_UDP_SEGMENTS)
        """What it takes as a sink: everything, since it sends wire packets. May be replaced."""
        self._peer = peer
        self._transform = transform
        opened = adopted(source)
        try:
            self._dscp = tuple(traffic_class(opened, ipv4) & ~ECN_MASK for ipv4 in (False, True))
            self._delivery = Delivery(
                opened,
                gso=gso is not False and segmentation_support(opened),
                max_segments=max_segments,
                max_bytes=max_bytes,
                never_equal_tail=never_equal_tail,
                timeout=timeout,
                backlog=backlog,
            )
            if isinstance(peer, tuple):
                try:
                    self._packed(peer)
                except (ValueError, OSError) as error:
                    raise ConfigError("peer", str(error)) from error
        except BaseException:
            opened.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. What waits is kept, for `take_back`. Twice does nothing more."""
        self._delivery.close()

    def fileno(self) -> int:
        """The descriptor. Raises EngineStateError after `close`."""
        if self._delivery.closed:
            raise EngineStateError("the sender is closed")
        return self._delivery.opened.fileno()

    @property
    def name(self) -> str:
        """The socket's name, as it stands in messages."""
        return self._delivery.name

    @property
    def gso(self) -> bool:
        """Whether the kernel is asked to cut trains at all."""
        return self._delivery.gso

    @property
    def without_gso(self) -> tuple[str, ...]:
        """Hosts whose route cannot cut, as was found; "" for the connected peer's. 1,024 at most.

        What they are sent goes datagram by datagram.
        """
        return tuple(self._delivery.hosts.values())

    def retry_gso(self) -> None:
        """Forget `without_gso`, and that ECN marks could not be sent: routes change."""
        self._delivery.hosts.clear()
        self._delivery.marks = True

    @property
    def backlog(self) -> int:
        """Datagrams that wait to be sent."""
        return len(self._delivery.backlog)

    @property
    def stats(self) -> UdpSenderStats:
        """A snapshot of the counters."""
        delivery = self._delivery
        sent, octets, trains = delivery.counters
        return UdpSenderStats(
            datagrams=sent,
            bytes=octets,
            trains=trains,
            cut=delivery.cut,
            retries=delivery.retries,
            refusals=delivery.refusals,
            refused=delivery.refused,
            dropped=delivery.dropped,
        )

    @property
    def refused(self) -> list[tuple[bytes, Address | None]]:
        """What the kernel refused for good in the latest `send`, `send_train` or `flush`.

        Each datagram and the address it was for, as in UdpSendError, however the call ended.
        """
        return self._delivery.told()

    def take_refusal(self) -> int:
        """The errno of the latest ICMP error that the kernel told of in place of sending, once.

        0 where there was none since the last call. What was to be sent then has been sent all the
        same; see `UdpSenderStats.refusals` for how often that was.
        """
        number, self._delivery.refusal = self._delivery.refusal, 0
        return number

    def path_mtu(self, address: Address | None = None) -> int | None:
        """The largest IP packet that reaches ``address`` whole, as far as the kernel knows now.

        address: None for the connected peer. None where the kernel knows nothing.
        """
        self.fileno()
        return path_mtu(self._delivery.opened, self._packed(address))

    def send(
        self,
        datagrams: "Iterable[Buffer]",
        address: Address | None = None,
        *,
        ecn: int | None = None,
        packet_info: PacketInfo | None = None,
    ) -> int:
        """Send ``datagrams``, bytes-like objects, to ``address``; how many the kernel took.

        address: numbers, as in ``socket.sendto``; None: the connected peer. ecn: the ECN mark, 0
        to 3; None: what the socket has. packet_info: the local address and interface to send
        from. What waited before is sent first, and counted.

        Raises DeviceError, with all that was not sent kept (see the class), UdpSendError, with
        all but what is in it sent, and ValueError for an address or mark that is none. Something
        that is not bytes-like is a TypeError; it is left out of what waits after that.
        """
        if isinstance(datagrams, bytes | bytearray | memoryview):
            raise TypeError("a list of datagrams is required, not one")
        job = Job([*datagrams], 0, self._aimed(address, ecn, packet_info))
        return self._delivery.run([job], self._job_of)

    def send_train(
        self,
        data: "Buffer",
        segment_size: int,
        address: Address | None = None,
        *,
        ecn: int | None = None,
        packet_info: PacketInfo | None = None,
    ) -> int:
        """Send ``data`` cut every ``segment_size`` bytes, as `send` would its pieces.

        No bytes are one empty datagram.
        """
        view = memoryview(data)
        # An empty train, as it was received, has a segment size of 0.
        within("segment_size", segment_size, 1 if view.nbytes else 0, 1 << 30)
        job = Job(view, segment_size or 1, self._aimed(address, ecn, packet_info))
        return self._delivery.run([job], self._job_of)

    def __call__(self, items: Iterable[Item], /) -> None:
        """Send the packets of an engine, or forward the trains of a `UdpDispatcher`, to ``peer``.

        Raises DeviceError as `send`; what the kernel refuses for good is only counted. ECN marks of
        trains are kept, packet information is not.
        """
        self._delivery.run(items, self._job_of, collect=False)

    def flush(self) -> int:
        """Send what waits; how many datagrams. Raises as `send`."""
        return self._delivery.run([], self._job_of)

    def take_back(self) -> list[tuple[bytes, Address | None]]:
        """Give up sending what waits: each datagram, and the address it was for.

        Raises EngineStateError while the sender is at work.
        """
        return self._delivery.take_back()

    def _job_of(self, item: Item) -> Job | None:
        """What is sent of an item that a hook was given."""
        address = self._peer(item) if callable(self._peer) else self._peer
        if address is None and self._peer is not None:
            return None
        if isinstance(item, Train):
            aim = self._aimed(address, item.ecn, None)
            if self._transform is None and len(item) > 1:
                return Job(item.buffer, item.segment_size, aim)
            found: list[Buffer] = [*item]
        else:
            aim = self._aimed(address, None, None)
            found = [*item.segments()] if item.gso_size else [bytes(item)]
        if self._transform is not None:
            found = [*map(self._transform, found)]
        return Job(found, 0, aim)

    def _packed(self, address: Address | None) -> bytes:
        return b"" if address is None else encode_address(self._delivery.opened.family, address)

    def _aimed(
        self, address: Address | None, ecn: int | None, packet_info: PacketInfo | None
    ) -> Aim:
        name = self._packed(address)
        ipv4 = self._delivery.is_ipv4(name)
        tos = None
        if ecn is not None:
            if not 0 <= ecn <= ECN_MASK:
                raise ValueError(f"ecn: {ecn!r} is not an ECN mark (0 to 3)")
            if self._delivery.marks:
                tos = self._dscp[ipv4] | ecn
        return Aim(name, *outgoing_control(ipv4, packet_info, tos))
