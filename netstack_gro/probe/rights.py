"""Which rights this process has: in its effective set, and over its network namespace."""

import os
import socket
import sys
from pathlib import Path

from netstack_gro.probe.netlink import may_change_links
from netstack_gro.probe.report import Right

__all__ = ["CAP_NET_ADMIN", "CAP_NET_RAW", "advice", "read_rights"]

CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h
CAP_NET_RAW = 13

_NAMES = {CAP_NET_ADMIN: "CAP_NET_ADMIN", CAP_NET_RAW: "CAP_NET_RAW"}
_STATUS = Path("/proc/thread-self/status")  # proc(5): since Linux 3.17
_OLD_STATUS = Path("/proc/self/status")


# Rights that are better not given to an interpreter, as what they are needed for can be opened.
_OTHER_WAYS = {
    "CAP_DAC_OVERRIDE": (
        "run it as root, or let all users open the file: chmod 0666 /dev/net/tun (making a device "
        "takes CAP_NET_ADMIN even then)"
    ),
    "CAP_NET_BIND_SERVICE": (
        "choose a port from 1024 on, run it as root, or let all users bind lower ones: "
        "sysctl -w net.ipv4.ip_unprivileged_port_start=0"
    ),
}


def read_rights() -> tuple[Right, Right]:
    """CAP_NET_ADMIN and CAP_NET_RAW, in this order."""
    held = _effective_set()
    return (
        _right(CAP_NET_ADMIN, held, may_change_links(), "makes TUN devices"),
        _right(CAP_NET_RAW, held, _may_open_packet_sockets(), "reads what an interface receives"),
    )


def advice(name: str) -> str:
    """How to come by a right, such as ``CAP_NET_RAW``."""
    if name in _OTHER_WAYS:
        return _OTHER_WAYS[name]
    python = os.path.realpath(sys.executable or "python3")
    return (
        "run it as root, or give the interpreter the right, which every script it runs then has: "
        f"setcap {name.lower()}+ep {python} (it replaces what was set: name several at once, "
        "with a comma between)"
    )


def _right(number: int, held: int | None, effective: bool, meaning: str) -> Right:
    mine = None if held is None else bool(held >> number & 1)
    text = ""
    if not effective:
        text = advice(_NAMES[number])
        if mine:
            text = (
                "this process holds it, but not over its network namespace, which belongs to "
                "another user namespace: make one of its own (unshare --net)"
            )
    return Right(name=_NAMES[number], held=mine, effective=effective, meaning=meaning, advice=text)


def _effective_set() -> int | None:
    """The calling thread's effective capabilities, a bit each; None where /proc is not there."""
    for status in (_STATUS, _OLD_STATUS):
        try:
            lines = status.read_text("ascii", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(":")
            if name == "CapEff":
                return int(value, 16)
    return None


def _may_open_packet_sockets() -> bool:
    """Whether CAP_NET_RAW counts in this network namespace (packet_create in af_packet.c)."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        return False
    except OSError:  # no packet sockets here at all: the effective set has to do
        held = _effective_set()
        return bool(held is not None and held >> CAP_NET_RAW & 1)
    return True
