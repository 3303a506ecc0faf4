"""What UDP sockets can do here, tried on sockets that are bound to nothing and send nothing."""

import ctypes
import errno
import os
import socket
from pathlib import Path

from netstack_gro.dispatchers import udp_socket
from netstack_gro.dispatchers.udp_socket import MAX_TRAIN, WANTED_TRAINS, Support
from netstack_gro.probe.report import Ability, Answer, ReceiveBuffer
from netstack_gro.probe.trial import Question, settle

__all__ = ["receive_buffer", "udp_sockets"]

_RMEM_MAX = Path("/proc/sys/net/core/rmem_max")
_GROUP = "udp"

# Releases: udp(7), recvmmsg(2), sendmmsg(2), socket(7).
_GRO = Question("UDP_GRO", _GROUP, "5.0", "many datagrams of one sender in one read")
_SEGMENT = Question("UDP_SEGMENT", _GROUP, "4.18", "many datagrams to one receiver in one write")
_RECVMMSG = Question("recvmmsg", _GROUP, "2.6.33", "many messages of any socket in one read")
_SENDMMSG = Question("sendmmsg", _GROUP, "3.0", "many messages in one write")
_OVERFLOW = Question("SO_RXQ_OVFL", _GROUP, "2.6.33", "says what the kernel had no room for")


def udp_sockets() -> list[Ability]:
    """The abilities."""
    return [
        _gro(),
        settle(_SEGMENT, _segment),
        settle(_RECVMMSG, lambda: _call("recvmmsg", None, 0, socket.MSG_DONTWAIT, None)),
        settle(_SENDMMSG, lambda: _call("sendmmsg", None, 0, socket.MSG_DONTWAIT)),
        settle(_OVERFLOW, _overflow),
    ]


def receive_buffer() -> ReceiveBuffer | None:
    """What a `UdpDispatcher` would get; None where there is no UDP socket."""
    try:
        limit = int(_RMEM_MAX.read_text("ascii"))
    except (OSError, ValueError):
        limit = None
    try:
        options = _prepared()
    except OSError:
        return None
    return ReceiveBuffer(
        limit=limit,
        bytes=options.receive_buffer // 2,
        trains=options.trains_held,
        wanted_bytes=WANTED_TRAINS * MAX_TRAIN,
        wanted_trains=WANTED_TRAINS,
    )


def _udp_socket() -> socket.socket:
    """A UDP socket of the family that there is: either may be switched off."""
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    except OSError:
        return socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)


def _prepared() -> udp_socket.ReceiveOptions:
    """What a socket has of what a `UdpDispatcher` asks for."""
    with _udp_socket() as tried:
        return udp_socket.prepare(
            tried,
            gro=None,
            ecn=True,
            packet_info=True,
            timestamps=True,
            receive_buffer=WANTED_TRAINS * MAX_TRAIN,
        )


def _gro() -> Ability:
    try:
        support = _prepared().gro
    except OSError as error:
        return _GRO.answer(Answer.UNKNOWN, f"no UDP socket: {error.strerror}")
    if support is not Support.UNVERIFIABLE:
        return _GRO.answer(Answer(support.value))
    return _GRO.answer(
        Answer.UNVERIFIABLE,
        "set, but the kernel cannot say so",
        "Linux 5.12 or later can; before, it is less reliable, and UdpDispatcher leaves it off "
        "unless told gro=True",
    )


def _segment() -> str:
    with _udp_socket() as tried:
        if not udp_socket.segmentation_support(tried):
            raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))
    return ""


def _call(name: str, *arguments: int | None) -> str:
    """Call a function of the C library on a socket, for no message at all."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        raise OSError(errno.ENOSYS, "the C library does not have it")
    with _udp_socket() as tried:
        if function(tried.fileno(), *arguments) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    return ""


def _overflow() -> str:
    if not _prepared().drops:
        raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))
    return ""
