"""Exceptions of the package. Packet bytes never raise one; misuse and unreadable files do.

Every class here also derives from the built-in exception that describes it, so a caller who
does not know the package still catches it by the usual name.
"""

__all__ = [
    "CaptureError",
    "CaptureFormatError",
    "CaptureTruncatedError",
    "ConfigError",
    "EngineStateError",
    "GroError",
    "GsoError",
    "PinnedError",
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
