"""What is asked of rtnetlink(7): what a link is like, what it dropped, and may it be changed.

Python has no library for it, and two messages do not ask for one.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator

__all__ = ["attributes", "may_change_links", "read_link", "unsent"]

NETLINK_ROUTE = 0  # include/uapi/linux/netlink.h
NLM_F_REQUEST = 1
NLM_F_ACK = 4
NLMSG_ERROR = 2

RTM_NEWLINK = 16  # include/uapi/linux/rtnetlink.h
RTM_GETLINK = 18
RTM_SETLINK = 19

IFLA_STATS64 = 23  # include/uapi/linux/if_link.h

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr: length, type

_DROPPED = struct.Struct("=56xQ")
_ERROR = struct.Struct("=i")  # the first field of struct nlmsgerr

_NO_LINK = 0x7FFFFFFF
_ANSWER = 1 << 16  # bytes; a link with all its attributes has some two thousand
_PATIENCE = 2.0  # seconds; the kernel answers within the call that asks


def may_change_links() -> bool:
    """Whether CAP_NET_ADMIN counts in this network namespace.

    Asks for no change of a link that does not exist: the right is looked at before that is seen
    (rtnetlink_rcv_msg in net/core/rtnetlink.c).
    """
    try:
        _ask(RTM_SETLINK, NLM_F_ACK, _NO_LINK)
    except OSError as error:
        return error.errno not in {errno.EPERM, errno.EACCES}
    return True


def read_link(index: int) -> tuple[int, dict[int, bytes]]:
    """The flags (IFF_) and attributes (IFLA_) of a link. OSError where there is none."""
    kind, answer = _ask(RTM_GETLINK, 0, index)
    if kind != RTM_NEWLINK or len(answer) < _LINK.size:
        raise OSError(errno.EPROTO, "no answer of rtnetlink")
    _, _, _, flags, _ = _LINK.unpack_from(answer)
    return flags, dict(attributes(answer[_LINK.size :]))


def unsent(index: int) -> int:
    """Packets that a link dropped instead of sending them. OSError where there is none."""
    _, link = read_link(index)
    counters = link.get(IFLA_STATS64, b"")
    # struct rtnl_link_stats64: packets, bytes, errors and dropped, each received and sent
    return _DROPPED.unpack_from(counters)[0] if len(counters) >= _DROPPED.size else 0


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes that ``data`` is a sequence of, without the flags in their types."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]  # NLA_TYPE_MASK
        at += -(-length // 4) * 4


def _ask(kind: int, flags: int, index: int) -> tuple[int, bytes]:
    """Type and content of the answer to a message about a link; OSError is raised as one."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0)
    head = _HEADER.pack(_HEADER.size + len(body), kind, NLM_F_REQUEST | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE) as asking:
        asking.settimeout(_PATIENCE)
        asking.sendto(head + body, (0, 0))
        answer = asking.recv(_ANSWER)
    if len(answer) < _HEADER.size:
        raise OSError(errno.EPROTO, "no answer of rtnetlink")
    length, answered, _, _, _ = _HEADER.unpack_from(answer)
    content = answer[_HEADER.size : length]
    if answered == NLMSG_ERROR and len(content) >= _ERROR.size:
        number = -_ERROR.unpack_from(content)[0]
        if number:
            raise OSError(number, os.strerror(number))
    return answered, content
