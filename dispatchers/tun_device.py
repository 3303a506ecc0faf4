"""TUN and TAP devices: created or attached with every setting known, whatever was left behind.

A TUN device carries IP packets, a TAP device Ethernet frames, one for each read(2) and write(2)
(Documentation/networking/tuntap.rst). In front of each stands a struct virtio_net_hdr, by which
super-packets and partial checksums pass in both directions.

Offloads, the header's size and its byte order belong to the device, not to a descriptor: on a
persistent device they outlive the process that set them. They are set anew at every attach.
"""

import errno
import logging
import os
import socket
import struct
import sys
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from netstack_gro.config import Link
from netstack_gro.dispatchers.interfaces import Interface
from netstack_gro.errors import (
    ConfigError,
    DeviceError,
    DeviceGoneError,
    UnsupportedError,
    device_error,
)

if sys.platform == "linux":
    import fcntl

__all__ = ["TunDevice", "TunKind", "TunOffloads"]

TunKind = Literal["tun", "tap"]

_NODE = "/dev/net/tun"
_RIGHT = "CAP_NET_ADMIN"

# include/uapi/linux/if_tun.h, in the encoding of include/uapi/asm-generic/ioctl.h
TUNSETIFF = 0x400454CA
TUNSETPERSIST = 0x400454CB
TUNGETFEATURES = 0x800454CF
TUNSETOFFLOAD = 0x400454D0
TUNGETIFF = 0x800454D2
TUNGETVNETHDRSZ = 0x800454D7
TUNSETVNETHDRSZ = 0x400454D8
TUNSETVNETLE = 0x400454DC
TUNSETVNETBE = 0x400454DE
IFF_TUN = 0x0001
IFF_TAP = 0x0002
IFF_MULTI_QUEUE = 0x0100
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
TUN_F_CSUM = 0x01
TUN_F_TSO4 = 0x02
TUN_F_TSO6 = 0x04
TUN_F_TSO_ECN = 0x08
TUN_F_USO4 = 0x20  # since 6.2, and only together with TUN_F_USO6
TUN_F_USO6 = 0x40

IFNAMSIZ = 16  # include/uapi/linux/if.h
IFF_UP = 0x0001
SIOCGIFFLAGS = 0x8913  # include/uapi/linux/sockios.h
SIOCSIFFLAGS = 0x8914

VNET_SIZE = 10  # struct virtio_net_hdr without num_buffers, include/uapi/linux/virtio_net.h

_TSO = TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN
_USO = TUN_F_USO4 | TUN_F_USO6
_LADDER = (TUN_F_CSUM | _TSO | _USO, TUN_F_CSUM | _TSO, TUN_F_CSUM, 0)

_KINDS: dict[TunKind, int] = {"tun": IFF_TUN, "tap": IFF_TAP}
_LINKS: dict[TunKind, Link] = {"tun": "ip", "tap": "ethernet"}

_log = logging.getLogger("netstack_gro")


@dataclass(frozen=True, slots=True)
class TunOffloads:
    """What may be left to the other side of a TUN.

    csum: transport checksums may be partial (NEEDS_CSUM). tso: TCP super-packets, over IPv4 and
    IPv6, with ECN or not. uso: UDP super-packets (UDP_L4), Linux 6.2. Neither of the two goes
    without csum; ConfigError says so.
    """

    csum: bool = True
    tso: bool = True
    uso: bool = True

    def __post_init__(self) -> None:
        for name in ("csum", "tso", "uso"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(name, f"{value!r} is not a bool")
            if value and not self.csum:
                raise ConfigError(name, "True takes csum=True as well")

    @classmethod
    def none(cls) -> Self:
        """Nothing: every packet as it is on a wire."""
        return cls(csum=False, tso=False, uso=False)

    def _mask(self) -> int:
        return self.csum * TUN_F_CSUM | self.tso * _TSO | self.uso * _USO

    @classmethod
    def _of_mask(cls, mask: int) -> Self:
        return cls(csum=bool(mask & TUN_F_CSUM), tso=bool(mask & _TSO), uso=bool(mask & _USO))


class TunDevice:
    """One queue of a TUN or TAP device: a descriptor, and what is known of the device.

    name: of the device, at most 15 bytes; it is created unless it exists. One ``%d`` in it stands
        for a number that the kernel chooses. None: ``tun%d`` or ``tap%d``.
    kind: ``tun`` or ``tap``.
    vnet_hdr: have a virtio_net_hdr in front of each packet. False is for kernels and devices where
        that does not work: nothing is left to the other side then, in either direction.
    offloads: what the reader of the device is ready for; the kernel leaves the rest of the work
        undone at most to this extent. Whoever reads a device with ``csum`` has to complete the
        checksum of every packet that asks for it (TunDispatcher does). None: all there is.
        What the kernel does not know is given up: `offloads` is the result.
    multi_queue: allow several queues. The kernel spreads flows over all that are open. All queues
        of a device are opened with True.
    persist: whether the device stays when its last descriptor is closed. None: as it is, which is
        False for a new one.

    The descriptor is non-blocking. The device is down and without an address at first: `up` sets
    it up, the rest is for netlink. A context manager; leaving it closes the descriptor.

    Raises NotPermittedError without CAP_NET_ADMIN, or where /dev/net/tun may not be opened,
    UnsupportedError where there is no TUN driver, ConfigError for a name that cannot be one, and
    DeviceError for a device that is in use (EBUSY) or exists with another kind or another idea of
    queues (EINVAL).
    """

    __slots__ = (
        "_accepts",
        "_descriptor",
        "_kind",
        "_multi_queue",
        "_name",
        "_offloads",
        "_vnet_size",
    )

    _accepts: TunOffloads
    _descriptor: int
    _kind: TunKind
    _multi_queue: bool
    _name: str
    _offloads: TunOffloads
    _vnet_size: int

    def __init__(
        self,
        name: str | None = None,
        *,
        kind: TunKind = "tun",
        vnet_hdr: bool = True,
        offloads: TunOffloads | None = None,
        multi_queue: bool = False,
        persist: bool | None = None,
    ) -> None:
        self._descriptor = -1
        if kind not in _KINDS:
            raise ConfigError("kind", f"{kind!r} is neither 'tun' nor 'tap'")
        if name is None:
            name = f"{kind}%d"
        encoded = os.fsencode(name)
        if not 0 < len(encoded) < IFNAMSIZ or b"\0" in encoded:
            raise ConfigError("name", f"{name!r} is not a name of 1 to {IFNAMSIZ - 1} bytes")
        flags = _KINDS[kind] | IFF_NO_PI
        flags |= IFF_MULTI_QUEUE if multi_queue else 0
        descriptor = _open_node(name)
        try:
            if vnet_hdr and _read(descriptor, name, TUNGETFEATURES) & IFF_VNET_HDR:
                flags |= IFF_VNET_HDR
            _attach(descriptor, encoded, flags)
            self._prepare(descriptor, offloads, VNET_SIZE)
            if persist is not None:
                self._set(descriptor, TUNSETPERSIST, persist, "cannot be made persistent or not")
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    @classmethod
    def from_fd(cls, descriptor: int, *, offloads: TunOffloads | None = None) -> Self:
        """The device of an attached descriptor, such as one received over SCM_RIGHTS.

        The object owns the descriptor from now on, also where this raises. Its header size stays
        as it is, as other queues may rely on it; offloads and byte order are set. It takes no
        right. It has to be attached with IFF_NO_PI: TUNGETIFF says that of every device, so it
        cannot be found out. Raises DeviceGoneError for a descriptor that is attached to nothing
        or closed, and DeviceError for one that is no TUN's.
        """
        device = cls.__new__(cls)
        device._descriptor = -1
        try:
            device._prepare(descriptor, offloads, None)
        except BaseException:
            _close(descriptor)
            raise
        device._descriptor = descriptor
        return device

    def open_queue(self) -> "TunDevice":
        """Another queue of the same device, with the same settings; it is closed by itself.

        Raises ConfigError without ``multi_queue``, and as the constructor does.
        """
        if not self._multi_queue:
            raise ConfigError("multi_queue", f"{self._name} was opened with False")
        return TunDevice(
            self._query()[0],
            kind=self._kind,
            vnet_hdr=self._vnet_size > 0,
            offloads=self._offloads,
            multi_queue=True,
        )

    @property
    def name(self) -> str:
        """The device's name when it was attached."""
        return self._name

    @property
    def kind(self) -> TunKind:
        """``tun`` or ``tap``."""
        return self._kind

    @property
    def link(self) -> Link:
        """The link layer of its packets: ``ip`` for TUN, ``ethernet`` for TAP."""
        return _LINKS[self._kind]

    @property
    def vnet_size(self) -> int:
        """Bytes of the virtio_net_hdr in front of each packet, in native byte order; 0: none."""
        return self._vnet_size

    @property
    def multi_queue(self) -> bool:
        """Whether it may have several queues."""
        return self._multi_queue

    @property
    def offloads(self) -> TunOffloads:
        """What the kernel may leave to the reader."""
        return self._offloads

    @property
    def accepts(self) -> TunOffloads:
        """What a writer may leave to the kernel, whatever the reader is ready for."""
        return self._accepts

    @property
    def mtu(self) -> int:
        """The largest IP packet of the device in bytes, now; super-packets are larger.

        Raises DeviceGoneError where the device was deleted, or is in another network namespace
        than this thread.
        """
        return Interface.find(self._query()[0]).mtu

    def up(self) -> None:
        """Set the interface up, by the right of CAP_NET_ADMIN. Raises DeviceError."""
        name = self._query()[0]
        request = struct.pack(f"={IFNAMSIZ}sH22x", os.fsencode(name), 0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            try:
                answer = fcntl.ioctl(asking, SIOCGIFFLAGS, request)
                (flags,) = struct.unpack_from("=H", answer, IFNAMSIZ)
                request = struct.pack(f"={IFNAMSIZ}sH22x", os.fsencode(name), flags | IFF_UP)
                fcntl.ioctl(asking, SIOCSIFFLAGS, request)
            except OSError as error:
                raise device_error(name, error, "cannot be set up", right=_RIGHT) from error

    def fileno(self) -> int:
        """The descriptor. Raises DeviceGoneError after `close`."""
        if self._descriptor < 0:
            raise DeviceGoneError(self._name, errno.EBADF, "its descriptor was closed")
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor. A device that does not persist goes with its last one."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._descriptor >= 0:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            self.close()

    def __repr__(self) -> str:
        return f"<TunDevice {self._name!r}, {self._kind}, header of {self._vnet_size} bytes>"

    def _query(self, descriptor: int | None = None) -> tuple[str, int]:
        """The device's name and flags as they are now."""
        if descriptor is None:
            descriptor = self.fileno()
        try:
            answer = fcntl.ioctl(descriptor, TUNGETIFF, bytes(40))
        except OSError as error:
            name = getattr(self, "_name", f"descriptor {descriptor}")
            if error.errno == errno.EBADFD:
                doing = "is no attached TUN device: it was deleted, or never attached"
                raise DeviceGoneError(name, error.errno, doing) from error
            raise device_error(name, error, "is no attached TUN device") from error
        name, flags = struct.unpack_from(f"={IFNAMSIZ}sH", answer)
        return os.fsdecode(name.rstrip(b"\0")), flags

    def _prepare(
        self, descriptor: int, offloads: TunOffloads | None, vnet_size: int | None
    ) -> None:
        """Find out what the descriptor is attached to, and set all that belongs to the device."""
        self._name, flags = self._query(descriptor)
        self._kind = "tap" if flags & IFF_TAP else "tun"
        self._multi_queue = bool(flags & IFF_MULTI_QUEUE)
        # Not what was asked for: a further queue has what the first one asked for.
        if flags & IFF_VNET_HDR:
            if vnet_size is None:
                vnet_size = _read(descriptor, self._name, TUNGETVNETHDRSZ)
            else:
                doing = f"cannot have a header of {vnet_size} bytes"
                self._set(descriptor, TUNSETVNETHDRSZ, vnet_size, doing)
            self._vnet_size = vnet_size
            self._set(descriptor, TUNSETVNETLE, 0, "cannot have native byte order")
            try:
                self._set(descriptor, TUNSETVNETBE, 0, "cannot have native byte order")
            except DeviceError as error:
                if error.errno != errno.EINVAL:  # without CONFIG_TUN_VNET_CROSS_LE: it is native
                    raise
        else:
            self._vnet_size = 0
        self._negotiate(descriptor, TunOffloads() if offloads is None else offloads)

    def _negotiate(self, descriptor: int, wanted: TunOffloads) -> None:
        """Set the offloads, which nothing but trying tells of.

        The most that the kernel knows is in force for a moment: a packet that it sends then is
        described by its header like any other.
        """
        known = 0
        if self._vnet_size:
            known = next(mask for mask in _LADDER if self._has_set(descriptor, mask))
        active = known & wanted._mask()
        if active != known or not self._vnet_size:
            self._set(descriptor, TUNSETOFFLOAD, active, "its offloads cannot be set")
        self._accepts = TunOffloads._of_mask(known)
        self._offloads = TunOffloads._of_mask(active)
        if self._vnet_size and active != wanted._mask():
            _log.info("%s: this kernel offers %s", self._name, self._offloads)

    def _has_set(self, descriptor: int, mask: int) -> bool:
        """Whether the kernel took an offload mask; the last resort, none, it has to take."""
        try:
            self._set(descriptor, TUNSETOFFLOAD, mask, "its offloads cannot be set")
        except DeviceError as error:
            if mask == 0 or error.errno != errno.EINVAL:
                raise
            return False
        return True

    def _set(self, descriptor: int, request: int, value: int, doing: str) -> None:
        # TUNSETOFFLOAD and TUNSETPERSIST take the number itself, the others a pointer to it.
        by_value = request in {TUNSETOFFLOAD, TUNSETPERSIST}
        try:
            fcntl.ioctl(descriptor, request, value if by_value else struct.pack("=i", value))
        except OSError as error:
            raise device_error(self._name, error, doing, right=_RIGHT) from error


def _open_node(name: str) -> int:
    """A descriptor of the driver, attached to nothing yet."""
    if sys.platform != "linux":
        raise UnsupportedError(name, errno.ENOSYS, f"TUN devices take Linux, not {sys.platform}")
    try:
        return os.open(_NODE, os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENODEV, errno.ENXIO}:
            raise UnsupportedError(
                name,
                error.errno,
                f"there is no TUN driver at {_NODE}: {error.strerror} (load the module tun; give "
                "a container the device)",
            ) from error
        # By the file's mode; EPERM comes of a container's device list, where no right helps.
        right = "CAP_DAC_OVERRIDE" if error.errno == errno.EACCES else None
        raise device_error(name, error, f"{_NODE} cannot be opened", right=right) from error


def _attach(descriptor: int, name: bytes, flags: int) -> None:
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack(f"={IFNAMSIZ}sH22x", name, flags))
    except OSError as error:
        shown = os.fsdecode(name)
        doing = "cannot be attached"
        if error.errno == errno.EBUSY:
            doing += (
                ", its one queue is in use already (a device that is opened with "
                "multi_queue=True everywhere has several)"
            )
        elif error.errno == errno.EINVAL:
            doing += (
                f" as a {'TAP' if flags & IFF_TAP else 'TUN'} device with "
                f"{'several queues' if flags & IFF_MULTI_QUEUE else 'a single queue'} "
                "(one of that name is of another kind, or the name is not allowed)"
            )
        raise device_error(shown, error, doing, right=_RIGHT) from error


def _read(descriptor: int, name: str, request: int) -> int:
    try:
        value: int = struct.unpack("=i", fcntl.ioctl(descriptor, request, bytes(4)))[0]
    except OSError as error:
        raise device_error(name, error, "cannot be asked for its settings") from error
    return value


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:  # closed by others, which a read or a write has told
            raise
