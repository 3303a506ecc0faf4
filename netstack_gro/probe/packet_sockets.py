"""What packet sockets can do here, tried on sockets that are bound to nothing and see nothing."""

import errno
import mmap
import socket
import struct
from collections.abc import Callable

from netstack_gro.dispatchers.interfaces import AF_PACKET
from netstack_gro.dispatchers.packet_socket import (
    PACKET_AUXDATA,
    PACKET_IGNORE_OUTGOING,
    PACKET_VNET_HDR,
    SOL_PACKET,
    FanoutGroup,
)
from netstack_gro.dispatchers.ring import PACKET_RX_RING, PACKET_VERSION, TPACKET_V3
from netstack_gro.probe.report import Ability, Answer
from netstack_gro.probe.trial import Question, settle

__all__ = ["packet_sockets"]

ETH_P_LOCAL = 0x88B5  # IEEE 802 "local experimental 1": a frame of it is not to be expected

_UNUSUAL_GROUP = 0x6772
_GROUP = "packet"

# Releases: packet(7), and for PACKET_VNET_HDR commit bfd5f4a3d605.
_SOCKET = Question(
    "AF_PACKET", _GROUP, "2.2", "reads what an interface receives", "modprobe af_packet"
)
_VNET_HDR = Question(
    "PACKET_VNET_HDR", _GROUP, "2.6.34", "says which frames are super-packets, or lack a checksum"
)
_AUXDATA = Question(
    "PACKET_AUXDATA", _GROUP, "2.6.21", "gives back the VLAN tag that was taken out of a frame"
)
_IGNORE_OUTGOING = Question(
    "PACKET_IGNORE_OUTGOING", _GROUP, "4.20", "leaves out what this host sends (else a filter does)"
)
_FANOUT = Question(
    "PACKET_FANOUT", _GROUP, "3.1", "shares an interface's flows among several dispatchers"
)
_RING = Question("TPACKET_V3", _GROUP, "3.2", "a ring that is read without copying")


def packet_sockets(right: str, advice: str) -> list[Ability]:
    """The abilities; right and advice: what a packet socket takes, and how to come by it."""
    first = settle(_SOCKET, _open, right, advice)
    if first.answer is not Answer.YES:
        why = f"{right} is missing" if first.advice == advice else "there are no packet sockets"
        return [first, *(each.untried(why, first.advice) for each in _TRIALS)]
    return [first, *(settle(each, attempt) for each, attempt in _TRIALS.items())]


def _open() -> str:
    socket.socket(AF_PACKET, socket.SOCK_RAW, 0).close()
    return ""


def _option(number: int) -> Callable[[], str]:
    def attempt() -> str:
        with socket.socket(AF_PACKET, socket.SOCK_RAW, 0) as tried:
            tried.setsockopt(SOL_PACKET, number, 1)
        return ""

    return attempt


def _fanout() -> str:
    # A member has to be in use; of this protocol it sees nothing all the same.
    with socket.socket(AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_LOCAL)) as tried:
        try:
            FanoutGroup().join(tried)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            FanoutGroup(_UNUSUAL_GROUP).join(tried)
            return "groups are numbered by hand: the kernel chooses from Linux 4.12 on"
    return ""


def _ring() -> str:
    page = mmap.PAGESIZE
    detail = ""
    with socket.socket(AF_PACKET, socket.SOCK_RAW, 0) as tried:
        tried.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
        # struct tpacket_req3: size and number of blocks, of frames, timeout in ms, two of no use
        request = struct.pack("=7I", page, 1, page, 1, 1, 0, 0)
        try:
            tried.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            tried.setsockopt(SOL_PACKET, PACKET_RX_RING, request)
        except OSError:
            tried.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 0)
            tried.setsockopt(SOL_PACKET, PACKET_RX_RING, request)
            detail = "without PACKET_VNET_HDR, which goes with it from Linux 4.6 on"
    return detail


_TRIALS: dict[Question, Callable[[], str]] = {
    _VNET_HDR: _option(PACKET_VNET_HDR),
    _AUXDATA: _option(PACKET_AUXDATA),
    _IGNORE_OUTGOING: _option(PACKET_IGNORE_OUTGOING),
    _FANOUT: _fanout,
    _RING: _ring,
}
