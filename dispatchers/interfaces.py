"""Network interfaces, by what the kernel says of them (netdevice(7))."""

import contextlib
import errno
import os
import socket
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from netstack_gro.errors import UnsupportedError, device_error

if sys.platform == "linux":
    import fcntl

__all__ = ["Interface", "borrowed_socket", "interface_index", "is_gone"]

AF_PACKET = 17  # include/linux/socket.h

# include/uapi/linux/sockios.h; struct ifreq is a name of 16 bytes and a union
SIOCGIFNAME = 0x8910
SIOCGIFMTU = 0x8921
SIOCGIFHWADDR = 0x8927
SIOCGIFINDEX = 0x8933
SIOCETHTOOL = 0x8946
ETHTOOL_GLINK = 0x0A  # include/uapi/linux/ethtool.h
_IFREQ = 40
_IFNAMSIZ = 16


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface of this thread's network namespace, as it was when it was looked for.

    hardware: its ARPHRD_* number (include/uapi/linux/if_arp.h). mtu: its MTU in bytes.
    """

    name: str
    index: int
    hardware: int
    mtu: int

    @classmethod
    def find(cls, interface: str | int) -> Self:
        """The interface of a name or index. Raises DeviceGoneError where there is none.

        It takes no right. Raises UnsupportedError on other systems than Linux.
        """
        if sys.platform != "linux":
            raise UnsupportedError(
                str(interface), errno.ENOSYS, f"this takes Linux, not {sys.platform}"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            try:
                name = interface if isinstance(interface, str) else _name(asking, interface)
                return cls(
                    name,
                    interface_index(asking, name),
                    _number(asking, SIOCGIFHWADDR, name) & 0xFFFF,  # sa_family of a sockaddr
                    _number(asking, SIOCGIFMTU, name),
                )
            except OSError as error:
                raise device_error(str(interface), error, "is no interface here") from error


def interface_index(asking: socket.socket, name: str) -> int:
    """The index of a name in the namespace of a socket; OSError where there is none."""
    return _number(asking, SIOCGIFINDEX, name)


@contextlib.contextmanager
def borrowed_socket(descriptor: int) -> Iterator[socket.socket]:
    """A socket object for a socket's descriptor, which stays its owner's.

    Raises OSError for what is no socket, or is not open.
    """
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def is_gone(descriptor: int) -> bool:
    """Whether the interface that a packet socket was bound to was deleted.

    Waits while it is being deleted: all that the socket hears of it is that it went down.
    """
    link = array("B", struct.pack("=II", ETHTOOL_GLINK, 0))
    request = struct.pack(f"@{_IFNAMSIZ}sP", b"lo", link.buffer_info()[0]).ljust(_IFREQ, b"\0")
    try:
        with borrowed_socket(descriptor) as borrowed:
            # Answered under the lock that a deletion holds to its end; what, is of no interest.
            with contextlib.suppress(OSError):
                fcntl.ioctl(descriptor, SIOCETHTOOL, request)
            name: str = borrowed.getsockname()[0]
    except OSError:  # closed by others, which whoever waits for it is told
        return False
    return not name  # the socket's index is -1 then, which has no name


def _name(asking: socket.socket, index: int) -> str:
    if not 0 < index < 2**31:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    request = struct.pack(f"={_IFNAMSIZ}xi", index).ljust(_IFREQ, b"\0")
    answer = fcntl.ioctl(asking, SIOCGIFNAME, request)
    return os.fsdecode(answer[:_IFNAMSIZ].rstrip(b"\0"))


def _number(asking: socket.socket, request: int, name: str) -> int:
    """The integer that an ioctl on an interface's name answers."""
    encoded = os.fsencode(name)
    if not 0 < len(encoded) < _IFNAMSIZ or b"\0" in encoded:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    answer = fcntl.ioctl(asking, request, encoded.ljust(_IFREQ, b"\0"))
    value: int = struct.unpack_from("=i", answer, _IFNAMSIZ)[0]
    return value
