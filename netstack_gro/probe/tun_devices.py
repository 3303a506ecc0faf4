"""What TUN devices can do here, tried on one that is never up and that nobody else sees.

Where this process may, the device is made in a network namespace of a thread of its own, which
is gone with the thread. Where it may not, in the process's own, for as long as the trial takes.
"""

import ctypes
import errno
import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from netstack_gro.dispatchers.tun_device import (
    IFF_MULTI_QUEUE,
    IFF_VNET_HDR,
    TUNGETFEATURES,
    TunDevice,
    TunOffloads,
)
from netstack_gro.probe.report import Ability, Answer
from netstack_gro.probe.trial import Question, settle

if sys.platform == "linux":
    import fcntl

__all__ = ["tun_devices"]

TUN = "/dev/net/tun"
CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h

_NAME = "gro-probe%d"
_GROUP = "tun"

_MODULE = (
    "modprobe tun; a container has to be given it "
    "(docker run --device /dev/net/tun --cap-add NET_ADMIN)"
)

_FORBIDDEN = (
    f"chmod 0666 {TUN} lets any user open it (making a device takes CAP_NET_ADMIN even then); "
    "a container has to be given it (docker run --device /dev/net/tun --cap-add NET_ADMIN)"
)

# Releases: commits f43798c27684 (vnet header and offloads), c8d68e6be1c3 (queues) and
# 399e0827642f (USO) of the kernel.
_DEVICE = Question(TUN, _GROUP, "2.4", "where TUN and TAP devices come from", _MODULE)
_CREATE = Question("TUNSETIFF", _GROUP, "2.4", "makes a TUN or TAP device, or attaches to one")
_FLAGS = {
    Question("IFF_VNET_HDR", _GROUP, "2.6.27", "super-packets to and from the kernel"): (
        IFF_VNET_HDR
    ),
    Question("IFF_MULTI_QUEUE", _GROUP, "3.8", "several dispatchers on one device"): (
        IFF_MULTI_QUEUE
    ),
}
_OFFLOADS = {
    Question("TUN_F_CSUM", _GROUP, "2.6.27", "packets whose checksum is still to be done"): "csum",
    Question("TUN_F_TSO", _GROUP, "2.6.27", "TCP super-packets from the kernel"): "tso",
    Question("TUN_F_USO", _GROUP, "6.2", "UDP super-packets from the kernel"): "uso",
}


def tun_devices(permitted: bool, right: str, advice: str) -> list[Ability]:
    """The abilities. permitted: whether a device may be made; right: what that takes."""
    found: list[Ability] = []
    # Its network namespace goes with the thread.
    thread = threading.Thread(target=lambda: found.extend(_try_all(permitted, right, advice)))
    thread.start()
    thread.join()
    return found


def _try_all(permitted: bool, right: str, advice: str) -> Iterator[Ability]:
    there = settle(_DEVICE, _open, "the right to open it", _FORBIDDEN)
    yield there
    if there.answer is not Answer.YES:
        for question in (_CREATE, *_FLAGS, *_OFFLOADS):
            yield question.untried(f"{TUN} cannot be opened", there.advice)
        return
    accepted: list[TunOffloads] = []
    if permitted:
        _leave_network()
        made = settle(_CREATE, partial(_make, accepted), right, advice)
    else:
        made = _CREATE.answer(Answer.NO, f"{right} is missing", advice)
    yield made
    for question, flag in _FLAGS.items():
        yield settle(question, partial(_knows, flag))
    for question, name in _OFFLOADS.items():
        if accepted:
            yield question.answer(Answer.YES if getattr(accepted[0], name) else Answer.NO)
        else:
            why = "no device could be made" if permitted else f"{right} is missing"
            yield question.untried(why, made.advice)


def _leave_network() -> None:
    """Move this thread to a network of its own, where it may; else it stays."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(CLONE_NEWNET)


def _open() -> str:
    os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
    return ""


def _make(accepted: list[TunOffloads]) -> str:
    """Make a device, see what it accepts, and let it go."""
    with TunDevice(_NAME) as device:
        accepted.append(device.accepts)
    return ""


def _knows(flag: int) -> str:
    """Whether the kernel lists a flag, for which it makes no device and asks for no right."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        (known,) = struct.unpack("=I", fcntl.ioctl(descriptor, TUNGETFEATURES, bytes(4)))
    finally:
        os.close(descriptor)
    if not known & flag:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return ""
