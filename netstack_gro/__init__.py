"""Receive offload for network stacks in user space.

A dispatcher reads many packets at once; `GroDispatcher` merges the TCP segments and UDP datagrams
of one flow into super-packets and hands each batch to a hook in one call. `segment` is the exact
inverse. Nothing is held from one batch to the next, and no input raises: only misuse does.

`__compiled__` says which engine runs (see NETSTACK_GRO_INTERPRETED in the README).
"""

from typing import Final

from netstack_gro import _speed

# Before the first hot module is imported: it decides where they come from.
__compiled__: Final[bool] = _speed.select_engine()

from netstack_gro.batch import Batch
from netstack_gro.config import ChecksumState, GroConfig, IpIdMode, Limits, Link
from netstack_gro.errors import (
    CaptureError,
    CaptureFormatError,
    CaptureTruncatedError,
    ConfigError,
    DeviceDownError,
    DeviceError,
    DeviceGoneError,
    EngineStateError,
    GroError,
    GsoError,
    NotPermittedError,
    PinnedError,
    UdpSendError,
    UnsupportedError,
    UnsupportedLinkTypeError,
    VirtioHeaderError,
)
from netstack_gro.flow import Flow
from netstack_gro.gro import GroDispatcher
from netstack_gro.gso import complete_checksum, segment
from netstack_gro.hook import Hook, Sink
from netstack_gro.packet import Packet
from netstack_gro.stats import Stats
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import GsoType, VirtioHeader

__version__: Final = "0.1.0"

__all__ = [
    "Batch",
    "CaptureError",
    "CaptureFormatError",
    "CaptureTruncatedError",
    "ChecksumState",
    "CloseReason",
    "ConfigError",
    "DeviceDownError",
    "DeviceError",
    "DeviceGoneError",
    "EngineStateError",
    "Flow",
    "GroConfig",
    "GroDispatcher",
    "GroError",
    "GsoError",
    "GsoType",
    "Hook",
    "IpIdMode",
    "Limits",
    "Link",
    "NotPermittedError",
    "Packet",
    "PinnedError",
    "Sink",
    "Stats",
    "UdpSendError",
    "UnsupportedError",
    "UnsupportedLinkTypeError",
    "Verdict",
    "VirtioHeader",
    "VirtioHeaderError",
    "__compiled__",
    "__version__",
    "complete_checksum",
    "segment",
]
