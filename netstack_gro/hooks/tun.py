"""TunWriter: writes what an engine delivers to a TUN or TAP device.

    with TunDevice("tun0") as device:
        writer = TunWriter(device)
        config = GroConfig(udp=True, delivered_checksums="partial")
        with RecvMmsgDispatcher("eth0", writer, config) as dispatcher:
            dispatcher.run()

A super-packet is one write, behind a struct virtio_net_hdr that tells the kernel how to cut it
where it has to. Each is linearised and written with its header by writev(2): for 45 segments
13 us, where their pieces take 22 us, written as they are or joined; for lone packets it is all
the same. So no write comes near the 1,024 buffers that the kernel takes (IOV_MAX).

A signal handler may raise between any two instructions, and has what was not written kept all the
same. So nothing is moved from one place to another: a call has its packets and one note of how far
it has come, and when it ends by whatever exception, the backlog is replaced by what is left by it.
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING

from netstack_gro.config import MAX_IP_LENGTH, ChecksumState, FixedIpIds, Limits, within
from netstack_gro.errors import (
    ConfigError,
    DeviceDownError,
    EngineStateError,
    GsoError,
    device_error,
)
from netstack_gro.gso import complete_checksum
from netstack_gro.hooks.room import FULL, Room, check_seconds
from netstack_gro.hooks.tun_frames import BARE, ip_start, probe, pseudo_sum
from netstack_gro.packet import Packet
from netstack_gro.virtio import GSO_ECN, NATIVE, NEEDS_CSUM, GsoType, VirtioHeader

if TYPE_CHECKING:
    from netstack_gro.dispatchers.tun_device import TunDevice

__all__ = ["TunWriter", "TunWriterStats"]

_TAG = Struct("!HH")


_MAX_SIZE = MAX_IP_LENGTH - 18
"""Of a super-packet's IP packet: with Ethernet header and VLAN tag it stays below the 65,536 bytes
from which on a device is not given it whole (GSO_LEGACY_MAX_SIZE, include/linux/netdevice.h)."""

_BACKLOG = 64 << 20  # bytes; as many as a batch of 1,024 packets may have

_log = logging.getLogger("netstack_gro")


@dataclass(frozen=True, slots=True, kw_only=True)
class TunWriterStats:
    """What a `TunWriter` has done since it was made.

    packets: packets of the engine that were written completely. super_packets: those of them that
        the kernel took whole, as super-packets. cut: super-packets that were written as their
        segments. writes, bytes: frames written, and their length without virtio_net_hdr.
    retries: how often a write was repeated because the kernel had no room.
    refused: what the kernel does not take in any form, such as a packet that is not IP, and what
        has no form that it could take; gone.
    dropped: what was more than the backlog may hold; gone.
    """

    packets: int = 0
    super_packets: int = 0
    cut: int = 0
    writes: int = 0
    bytes: int = 0
    retries: int = 0
    refused: int = 0
    dropped: int = 0


_Place = tuple[int, int, bool, list[int]]
"""How far a call has come: item, frame, whole, answers. A plain tuple: there is one a packet.

item: the one that is being written. frame: how many of its frames are written, where it is
being cut. whole: whether the write at hand is of all of it, and not of one frame. answers:
what the kernel has answered to that write, nothing as long as it was not made.
"""

_UDP_L4 = int(GsoType.UDP_L4)  # to look up an enumeration's member takes longer than to compare
_VERIFIED = ChecksumState.VERIFIED


class TunWriter:
    """TunWriter(device, ...): a sink that writes to one queue of a TUN or TAP device.

    device: a `TunDevice`, which stays the caller's; whoever reads it is not disturbed.
    tcp, udp: whether super-packets of that transport are written at all. UDP takes a kernel that
        knows USO (6.2). Kernels before 6.8.5 lose datagrams of a tunnel (VXLAN) that arrive merged.
    fixed_ip_ids: as in `GroConfig`. A kernel that cuts a super-packet counts IPv4 IDs up. ``df``
        merges packets of equal ID only where don't-fragment is set, and the ID means nothing
        (RFC 6864 section 4.1); ``refuse`` has every ID arrive as it was.
    timeout: seconds that one call waits in all while the kernel has no room. 0.05 by default: the
        dispatcher cannot be stopped meanwhile.
    backlog: bytes of packets that may wait for a next call; see below.

    `limits` say what the device can take: everything as super-packets with partial checksums, or
    without a virtio_net_hdr nothing merged and complete checksums. What arrives all the same is
    cut. A link header in front of IP packets is taken off for a TUN; what is not IP is refused
    then. A TAP takes Ethernet frames only (else ConfigError), and a VLAN tag that the packet has
    as metadata is put back into its frame.

    No packet is lost to an error that may pass. When the device is down (DeviceDownError), gone
    (DeviceGoneError), or has no room for longer than ``timeout`` (DeviceError), what was not
    written is copied to a backlog before the exception leaves; the next call writes that first,
    so the order holds, and so does `flush`; `take_back` gives it to the caller. Only beyond
    ``backlog`` bytes is anything dropped.

    The same holds for any exception, such as a KeyboardInterrupt out of a signal handler: from when
    the call has begun until it returns, each packet has been written, or waits, or was refused, in
    order and once, and nothing is written once an exception has struck. writev(2) is called so
    that no handler runs between its end and the note of it; only one that is replaced by code in
    Python which raises when it has written may have the packet written again. A packet that has
    no form for the device (ConfigError, GsoError) is given up, and the others wait. Only a second
    exception, while what is left is being copied, costs that.

    A super-packet that the kernel refuses (EINVAL; some stable kernels refuse a shorter last
    segment) is cut and its segments are written. A faultless super-packet that goes nowhere then
    tells whether it was this packet or is the kernel: if that is refused too, merging of its
    transport is withdrawn from `limits` for good, and said once to the logger ``netstack_gro``.

    One thread at a time (EngineStateError); several writers may share a device.
    """

    __slots__ = (
        "_backlog",
        "_backlog_size",
        "_busy",
        "_bytes",
        "_cut",
        "_device",
        "_dropped",
        "_limits",
        "_link",
        "_packets",
        "_padding",
        "_place",
        "_plain",
        "_proven",
        "_refused",
        "_retries",
        "_room",
        "_super_packets",
        "_vnet_size",
        "_writes",
    )

    def __init__(
        self,
        device: "TunDevice",
        *,
        tcp: bool = True,
        udp: bool = True,
        fixed_ip_ids: FixedIpIds = "df",
        timeout: float = 0.05,
        backlog: int = _BACKLOG,
    ) -> None:
        check_seconds("timeout", timeout)
        within("backlog", backlog, 0, 1 << 40)
        accepts = getattr(device, "accepts", None)
        if accepts is None:
            raise ConfigError("device", f"a TunDevice is required, not {type(device).__name__!r}")
        self._limits = Limits(
            tcp=tcp and accepts.tso,
            udp=udp and accepts.uso,
            max_size=_MAX_SIZE,
            delivered_checksums="partial" if accepts.csum else "complete",
            fixed_ip_ids=fixed_ip_ids,
        )
        self._device = device
        self._link = device.link
        self._vnet_size = device.vnet_size
        self._plain = bytes(self._vnet_size)
        self._padding = bytes(max(0, self._vnet_size - NATIVE.size))
        self._room = Room(timeout)
        self._proven: set[tuple[GsoType, int]] = set()
        self._backlog: deque[Packet | bytes] = deque()
        self._backlog_size = backlog
        self._busy = False
        self._place: _Place = (0, 0, True, [])
        self._packets = self._super_packets = self._cut = 0
        self._writes = self._bytes = self._retries = 0
        self._refused = self._dropped = 0

    @property
    def limits(self) -> Limits:
        """What the device takes now. Another object when merging was withdrawn."""
        return self._limits

    @property
    def stats(self) -> TunWriterStats:
        """A snapshot of the counters."""
        return TunWriterStats(
            packets=self._packets,
            super_packets=self._super_packets,
            cut=self._cut,
            writes=self._writes,
            bytes=self._bytes,
            retries=self._retries,
            refused=self._refused,
            dropped=self._dropped,
        )

    @property
    def backlog(self) -> int:
        """Packets that wait to be written, or the rest of one that was being cut."""
        return len(self._backlog)

    def __call__(self, packets: Iterable[Packet], /) -> None:
        """Write the packets, in the order given, behind what has waited.

        Raises DeviceError, with all that was not written kept.
        """
        self._run(packets)

    def flush(self) -> None:
        """Write what waits. Raises DeviceError, with the rest kept."""
        self._run(())

    def take_back(self) -> list[bytes]:
        """Give up writing what waits: its wire packets, with complete checksums.

        They are frames of the device, without virtio_net_hdr. Raises EngineStateError while the
        writer is at work.
        """
        if self._busy:
            raise EngineStateError(f"{self._device.name}: the writer is at work")
        frames: list[bytes] = []
        for held in self._backlog:
            if isinstance(held, bytes):
                frames.append(held)
            else:
                frames += self._wire_frames(held, held.virtio_header())
        self._backlog = deque()
        return frames

    # --- a call and what is left of it -----------------------------------------------------------

    def _run(self, packets: Iterable[Packet]) -> None:
        """Write the backlog and ``packets``."""
        if self._busy:
            raise EngineStateError(f"{self._device.name}: the writer is at work already")
        items: list[Packet | bytes] | None = None
        self._place = (0, 0, True, [])
        try:
            try:
                self._busy = True
                self._room.begin()
                items = [*self._backlog, *packets]
                for index, item in enumerate(items):
                    self._place = (index, 0, True, [])
                    if isinstance(item, bytes):
                        self._refused += not self._put((self._plain, item))
                    else:
                        self._write(item)
                self._backlog = deque()
            except BaseException as error:
                # Of all exceptions: the packets lie in memory that is used again from now on.
                if items is None:
                    items = [*self._backlog, *(packets if isinstance(packets, list) else ())]
                self._save(items, given_up=isinstance(error, ConfigError | GsoError))
                raise
            finally:
                self._busy = False
        finally:
            self._busy = False

    def _save(self, items: list[Packet | bytes], *, given_up: bool) -> None:
        """Make the backlog of what a call has not written, copied."""
        index, frame, whole, answers = self._place
        if answers:
            frame += 1
        if given_up:
            self._refused += 1
        if given_up or (answers and whole):
            index += 1
            frame = 0
        left: list[Packet | bytes] = items[index:]
        if frame and left and not isinstance(left[0], bytes):
            left[:1] = islice(self._wire_frames(left[0], left[0].virtio_header()), frame, None)
        backlog: deque[Packet | bytes] = deque()
        held = 0
        for packet in left:
            if held + len(packet) > self._backlog_size:
                self._dropped += 1
                continue
            held += len(packet)
            backlog.append(packet if isinstance(packet, bytes) else packet.detach())
        self._backlog = backlog

    # --- what one packet takes -----------------------------------------------------------------

    def _write(self, packet: Packet) -> None:
        """Write a packet in whatever form the device takes; on an error, what is left waits."""
        header = packet.virtio_header()
        if not header.gso_type and not header.flags:
            written = self._write_frame(packet, bytes(packet), 0, header)
        else:
            written = self._write_merged(packet, header)
        if written:
            self._packets += 1
            self._super_packets += header.gso_type != 0
        elif header.gso_type or header.flags:
            self._write_cut(packet, header)
        else:
            self._refused += 1

    def _write_merged(self, packet: Packet, header: VirtioHeader) -> bool:
        """Leave segmentation and checksum to the kernel; False where it does not take that."""
        if not self._vnet_size:
            return False
        if not header.gso_type:
            return self._write_frame(packet, bytes(packet), NEEDS_CSUM, header)
        udp = header.gso_type & ~GSO_ECN == _UDP_L4
        if not (self._limits.udp if udp else self._limits.tcp):
            return False
        flags = header.flags & NEEDS_CSUM
        data: bytes | bytearray = bytes(packet)
        if not flags:
            # The kernel insists for UDP. For TCP it saves it from summing up what was verified.
            field = header.csum_start + header.csum_offset
            if udp and data[field : field + 2] == b"\0\0":
                return False  # it would get a checksum, and came without
            if udp or packet.packets > 1 or packet.checksum is _VERIFIED:
                data = bytearray(data)
                at = max(0, ip_start(data, packet.link))
                data[field : field + 2] = pseudo_sum(data, at, header).to_bytes(2, "big")
                flags = NEEDS_CSUM
        if self._write_frame(packet, data, flags, header):
            return True
        self._judge(header, data[max(0, ip_start(data, packet.link))] >> 4)
        return False

    def _write_cut(self, packet: Packet, header: VirtioHeader) -> None:
        """Write a packet as the wire packets that it stands for."""
        index = self._place[0]
        offered = taken = 0
        for frame in self._wire_frames(packet, header):
            self._place = (index, offered, False, [])
            offered += 1
            taken += self._put((self._plain, frame))
        if not offered or taken < offered:
            self._refused += 1
        else:
            self._packets += 1
            self._cut += header.gso_type != 0

    def _write_frame(
        self, packet: Packet, data: bytes | bytearray, flags: int, header: VirtioHeader
    ) -> bool:
        """Write a packet as one frame; False where the kernel does not take it."""
        fitted = self._fit(packet, data)
        if fitted is None:
            return False
        pieces, shift = fitted
        if not flags and not header.gso_type:
            return self._put((self._plain, *pieces))
        start = header.csum_start + shift
        length = header.hdr_len + shift if header.gso_type else 0
        if start < 0:
            return False
        described = NATIVE.pack(
            flags, header.gso_type, length, header.gso_size, start, header.csum_offset
        )
        return self._put((described + self._padding, *pieces))

    def _wire_frames(self, packet: Packet, header: VirtioHeader) -> Iterator[bytes]:
        """The frames, with complete checksums, that a packet is on a wire."""
        if header.gso_type:
            wire_packets = packet.segments()
        else:
            wire_packets = iter((complete_checksum(bytes(packet), header),))
        for data in wire_packets:
            fitted = self._fit(packet, data)
            if fitted is not None:
                yield b"".join(fitted[0])

    def _fit(
        self, packet: Packet, data: bytes | bytearray
    ) -> tuple[tuple[bytes | bytearray | memoryview, ...], int] | None:
        """A packet's bytes with the link header of the device, and by how much offsets grow.

        None for what is not IP and has to be.
        """
        link = packet.link
        if self._link == "ip":
            if link in BARE:
                return (data,), 0
            start = ip_start(data, link)
            return None if start < 0 else ((memoryview(data)[start:],), -start)
        if link != "ethernet":
            raise ConfigError(
                "link", f"{link!r} packets have no Ethernet header, which {self._device.name} needs"
            )
        if packet.vlan is None:
            return (data,), 0
        tag = _TAG.pack(packet.vlan_tpid, packet.vlan)
        return (data[:12], tag, memoryview(data)[12:]), len(tag)

    # --- writing -------------------------------------------------------------------------------

    def _put(self, buffers: tuple[bytes | bytearray | memoryview, ...]) -> bool:
        """writev(2), repeated while there is no room; False for EINVAL."""
        descriptor = self._device.fileno()
        answers = self._place[3]
        while True:
            try:
                # All in C, so that no signal handler is run before the answer is noted.
                answers.extend(map(os.writev, (descriptor,), (buffers,)))
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return False
                doing = "cannot be written to"
                if error.errno == errno.EIO:  # drivers/net/tun.c: not IFF_UP
                    raise DeviceDownError(
                        self._device.name, errno.EIO, f"{doing}: the interface is down"
                    ) from error
                if error.errno not in FULL or not self._room.wait(descriptor, error.errno):
                    raise device_error(self._device.name, error, doing) from error
                self._retries += 1
            else:
                self._writes += 1
                self._bytes += answers[0] - self._vnet_size
                return True

    # --- a refused super-packet ----------------------------------------------------------------

    def _judge(self, header: VirtioHeader, version: int) -> None:
        """Find out whether the kernel refused one packet, or any like it."""
        kind = GsoType(header.gso_type & ~GSO_ECN)
        if (kind, version) in self._proven:
            return
        described, frame = probe(kind, version, self._link)
        try:
            os.writev(self._device.fileno(), (described + self._padding, frame))
        except OSError as error:
            if error.errno != errno.EINVAL:
                return  # it says nothing about super-packets
        else:
            self._proven.add((kind, version))
            return
        limits = self._limits
        udp = kind is GsoType.UDP_L4
        self._limits = replace(limits, udp=False) if udp else replace(limits, tcp=False)
        _log.warning(
            "%s: this kernel refuses %s super-packets; they are no longer merged for it",
            self._device.name,
            "UDP" if udp else "TCP",
        )
