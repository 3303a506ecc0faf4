"""Frames read from the kernel's packet sockets, complete and in order.

packet(7): the kernel hands a VLAN tag over beside the frame and tells in the status word whether
the transport checksum is still to be filled in. `receive` puts the tag back where it was.
"""

import socket
import struct
import time
from typing import NamedTuple

from pcaps.recorder.network import Namespace

__all__ = ["Frame", "PacketEnd", "Tap", "TapOverflowError"]

# include/uapi/linux/if_packet.h
SOL_PACKET = 263
PACKET_STATISTICS = 6
PACKET_AUXDATA = 8
PACKET_IGNORE_OUTGOING = 23
TP_STATUS_CSUMNOTREADY = 1 << 3
TP_STATUS_VLAN_VALID = 1 << 4
TP_STATUS_VLAN_TPID_VALID = 1 << 6
AUXDATA = struct.Struct("=IIIHHHH")  # struct tpacket_auxdata

ETH_P_ALL = 0x0003  # include/uapi/linux/if_ether.h
ETH_P_8021Q = 0x8100
SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@ll")
ANCILLARY = socket.CMSG_SPACE(AUXDATA.size) + socket.CMSG_SPACE(TIMESPEC.size)

RECEIVE_BUFFER = 64 << 20
LARGEST_FRAME = 1 << 17

LINKTYPE_LINUX_SLL2 = 276  # https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html
SLL2 = struct.Struct("!HHIHBB8s")


class TapOverflowError(Exception):
    """The kernel dropped frames because the tap's buffer was full: the recording is worthless."""


class Frame(NamedTuple):
    data: bytes
    timestamp_ns: int
    checksum_pending: bool
    """The kernel left the transport checksum to the device."""


def _packet_socket(namespace: Namespace, interface: str | None, kind: int) -> socket.socket:
    """Of one interface, or of all."""
    # Protocol 0 receives nothing: no frame of another interface comes in before the bind.
    protocol = 0 if interface else socket.htons(ETH_P_ALL)
    tap = namespace.open_socket(socket.AF_PACKET, kind, protocol)
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    tap.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    tap.setblocking(False)
    if interface:
        tap.bind((interface, ETH_P_ALL))
    return tap


def _receive(
    tap: socket.socket,
) -> tuple[bytes, int, int, tuple[str, int, int, int, bytes]] | None:
    """Data with its outer tag put back, time, status and address of the next frame."""
    try:
        data, ancillary, _flags, address = tap.recvmsg(LARGEST_FRAME, ANCILLARY)
    except BlockingIOError:
        return None
    status = timestamp = 0
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = TIMESPEC.unpack(content)
            timestamp = seconds * 1_000_000_000 + nanoseconds
        elif (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, _length, _snapped, _mac, _net, tci, tpid = AUXDATA.unpack(content)
            if status & TP_STATUS_VLAN_VALID:
                if not status & TP_STATUS_VLAN_TPID_VALID:
                    tpid = ETH_P_8021Q
                data = data[:12] + struct.pack("!HH", tpid, tci) + data[12:]
    return data, timestamp, status, address


class PacketEnd:
    """One end of a `cable.Cable`: takes what arrives at a device, sends what is given to it."""

    def __init__(self, namespace: Namespace, interface: str) -> None:
        self._socket = _packet_socket(namespace, interface, socket.SOCK_RAW)
        self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """The next frame, its VLAN tags within; None when there is none."""
        received = _receive(self._socket)
        return received[0] if received else None

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def close(self) -> None:
        self._socket.close()


class Tap:
    """Records both directions at one device, or with `interface=None` at every device.

    The frames wait in the kernel until `frames` fetches them, so recording takes no time from
    the traffic. The tap of every device is a cooked one, with a header of link type 276.
    """

    def __init__(self, namespace: Namespace, interface: str | None) -> None:
        self._cooked = interface is None
        self._indices = namespace.indices()
        kind = socket.SOCK_DGRAM if self._cooked else socket.SOCK_RAW
        self._socket = _packet_socket(namespace, interface, kind)
        # The kernel begins to take timestamps a little after the first socket asked for them;
        # frames of that moment would carry the time at which they are fetched.
        time.sleep(0.05)
        self.frames()

    def frames(self) -> list[Frame]:
        """All frames so far. Raises `TapOverflowError` where some are missing."""
        frames = []
        while (received := _receive(self._socket)) is not None:
            data, timestamp, status, (interface, protocol, direction, hardware, mac) = received
            if self._cooked:
                address = mac[:8].ljust(8, b"\0")
                data = (
                    SLL2.pack(
                        protocol,
                        0,
                        self._indices[interface],
                        hardware,
                        direction,
                        len(mac),
                        address,
                    )
                    + data
                )
            frames.append(Frame(data, timestamp, bool(status & TP_STATUS_CSUMNOTREADY)))
        counts = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        _seen, dropped = struct.unpack("=II", counts)
        if dropped:
            raise TapOverflowError(f"the kernel dropped {dropped} frames")
        return frames

    def close(self) -> None:
        self._socket.close()
