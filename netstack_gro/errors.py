"""Exceptions of the package. Packet bytes never raise one; misuse, unreadable files and devices do.

Every class here also derives from the built-in exception that describes it, so a caller who
does not know the package still catches it by the usual name.
"""

import errno
import os
from typing import Any

__all__ = [
    "CaptureError",
    "CaptureFormatError",
    "CaptureTruncatedError",
    "ConfigError",
    "DeviceDownError",
    "DeviceError",
    "DeviceGoneError",
    "EngineStateError",
    "GroError",
    "GsoError",
    "NotPermittedError",
    "PinnedError",
    "UdpSendError",
    "UnsupportedError",
    "UnsupportedLinkTypeError",
    "VirtioHeaderError",
]


class GroError(Exception):
    """Base class of every error that this package defines."""


class ConfigError(GroError, ValueError):
    """A configuration field holds what it cannot hold; ``field`` names it.

    The message starts with the field's name and repeats the value that was refused.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self._message = message

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.field, self._message)


class EngineStateError(GroError, RuntimeError):
    """An engine was entered while it was at work, or after it was closed.

    A hook that calls back into its own engine and a second thread inside one get this.
    """


class PinnedError(GroError, BufferError):
    """Views that a hook kept pin every slab that may be allocated (``max_slabs``)."""


class GsoError(GroError, ValueError):
    """A packet cannot be cut into segments as its virtio_net_hdr asks; the packet is unchanged."""


class VirtioHeaderError(GroError, ValueError):
    """Bytes or values that do not make a struct virtio_net_hdr."""


class CaptureError(GroError, OSError):
    """A capture file cannot be read or written; ``name`` says which, ``offset`` where in it.

    ``offset`` is the byte offset in the (decompressed) file at which the reader stood, or None.
    """

    def __init__(self, name: str, message: str, offset: int | None = None) -> None:
        where = name if offset is None else f"{name}: byte {offset}"
        super().__init__(f"{where}: {message}")
        self.name = name
        self.offset = offset
        self._message = message

    def __reduce__(self) -> tuple[type, tuple[str, str, int | None]]:
        return type(self), (self.name, self._message, self.offset)


class CaptureFormatError(CaptureError, ValueError):
    """The bytes are not those of a capture file, or break its format."""


class CaptureTruncatedError(CaptureFormatError):
    """The file ends within a header or record."""


class UnsupportedLinkTypeError(CaptureError, ValueError):
    """An interface of a capture has a link type that this package does not read.

    ``link_type`` is its LINKTYPE_ number (https://www.tcpdump.org/linktypes.html), ``known_as``
    the name there, where it is a well-known one.
    """

    def __init__(
        self, name: str, link_type: int, offset: int | None = None, known_as: str | None = None
    ) -> None:
        what = f"link type {link_type}" + (f" (LINKTYPE_{known_as})" if known_as else "")
        super().__init__(name, f"{what} is not supported", offset)
        self.link_type = link_type
        self.known_as = known_as

    def __reduce__(self) -> tuple[type, tuple[str, int, int | None, str | None]]:  # type: ignore[override]
        return type(self), (self.name, self.link_type, self.offset, self.known_as)


class DeviceError(GroError, OSError):
    """A device, interface or socket refused what was asked of it.

    ``name`` says which, ``errno`` is the kernel's answer, 0 where there is none, and ``strerror``
    says what was refused and what to do.
    """

    def __init__(self, name: str, number: int, message: str) -> None:
        super().__init__(number, message)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name}: {self.strerror}"

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.name, self.errno or 0, self.strerror or "")


class DeviceGoneError(DeviceError):
    """The device does not exist (any more), or the descriptor is no longer open."""


class DeviceDownError(DeviceError):
    """The interface is down; it can be used again when it is up, through the same descriptor."""


class NotPermittedError(DeviceError, PermissionError):
    """A right is missing; ``right`` names it (capabilities(7)), where one would do.

    `netstack_gro.probe.rights.advice` says how to come by it.
    """

    def __init__(self, name: str, number: int, message: str, right: str | None = None) -> None:
        super().__init__(name, number, message)
        self.right = right

    def __reduce__(self) -> tuple[type, tuple[str, int, str, str | None]]:  # type: ignore[override]
        return type(self), (self.name, self.errno or 0, self.strerror or "", self.right)


class UnsupportedError(DeviceError):
    """The kernel cannot do this; ``since`` is the release that can, where it is known."""

    def __init__(self, name: str, number: int, message: str, since: str | None = None) -> None:
        super().__init__(name, number, message)
        self.since = since

    def __reduce__(self) -> tuple[type, tuple[str, int, str, str | None]]:  # type: ignore[override]
        return type(self), (self.name, self.errno or 0, self.strerror or "", self.since)


class UdpSendError(DeviceError):
    """Datagrams that the kernel does not send at all; all others were sent.

    ``errno`` says why the first was refused: EMSGSIZE where it is longer than the path or UDP
    allow, ENETUNREACH where there is no route, EPERM where a firewall forbids it. ``refused`` are
    the datagrams, each with the address it was for as the socket module has it (None: the
    connected peer), and ``mtu`` is what the path of the first takes, headers included, where the
    kernel knows.
    """

    def __init__(
        self,
        name: str,
        number: int,
        message: str,
        refused: list[tuple[bytes, Any]],
        mtu: int | None = None,
    ) -> None:
        super().__init__(name, number, message)
        self.refused = refused
        self.mtu = mtu

    def __reduce__(self) -> tuple[type, tuple[str, int, str, list[tuple[bytes, Any]], int | None]]:  # type: ignore[override]
        return type(self), (
            self.name,
            self.errno or 0,
            self.strerror or "",
            self.refused,
            self.mtu,
        )


_DELETED = getattr(errno, "EBADFD", -1)  # what a TUN answers when its device is no more
_GONE = frozenset({errno.EBADF, _DELETED, errno.ENODEV, errno.ENXIO})
_REFUSED = frozenset({errno.EPERM, errno.EACCES})


def device_error(
    name: str, cause: OSError | int, doing: str, *, right: str | None = None
) -> DeviceError:
    """The error to raise for what the kernel answered, of the class that fits.

    name: the device's. cause: the OSError or its number. doing: what was tried ("cannot be
    read"). right: the capability that it takes, named where the answer is EPERM or EACCES.
    """
    number = cause if isinstance(cause, int) else cause.errno or 0
    message = f"{doing}: {os.strerror(number)}" if number else f"{doing}: {cause}"
    if number == _DELETED:
        message = f"{doing}: the device was deleted"
    if number in _REFUSED:
        if right is not None:
            message += f" ({right} is needed)"
        return NotPermittedError(name, number, message, right)
    if number == errno.ENETDOWN:
        return DeviceDownError(name, number, message)
    if number in _GONE:
        return DeviceGoneError(name, number, message)
    return DeviceError(name, number, message)
