"""What an engine is told once (`GroConfig`), what a sink may take (`Limits`), and their words.

Everything here is immutable, so an engine can compare by identity and never has to lock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Literal, get_args

from netstack_gro.errors import ConfigError

__all__ = [
    "ChecksumState",
    "Delivered",
    "FixedIpIds",
    "GroConfig",
    "IpIdMode",
    "Limits",
    "Link",
    "Received",
    "within",
]

Link = Literal["ip", "ipv4", "ipv6", "ethernet", "null", "loop", "sll", "sll2"]
"""The link layer: where the IP header starts and what stands before it.

``ip``: nothing, the version nibble decides (LINKTYPE_RAW 101, also 12 and 14);
``ipv4`` and ``ipv6``: nothing, only that version (228, 229);
``ethernet``: 14 bytes, then at most two VLAN tags (1);
``null``: a 4-byte address family in either byte order (0); ``loop``: in network order (108);
``sll``, ``sll2``: Linux cooked capture, 16 and 20 bytes (113, 276).
"""

Received = Literal["verify", "trust"]
Delivered = Literal["complete", "partial"]
FixedIpIds = Literal["merge", "df", "refuse"]

MAX_IP_LENGTH = 65535  # RFC 791 section 3.1, RFC 8200 section 3: 16-bit length fields
MAX_CAPACITY = 65536
MAX_PACKET = 2**30  # bytes; far beyond any packet, and no sum of two lengths leaves a C int
MAX_UDP_SEGMENTS = 128  # UDP_MAX_SEGMENTS, include/linux/udp.h since 6.9; 64 before

# Linux hands datagrams to these ports to a tunnel, which cannot undo a merge of the outer UDP:
# VXLAN 4789 (RFC 7348) and 8472 (Linux's default), Geneve 6081 (RFC 8926) and 6080, GRE-in-UDP
# 4754 and 4755 (RFC 8086), MPLS-in-UDP 6635 (RFC 7510), GTP-U 2152 (3GPP TS 29.281).
UDP_TUNNEL_PORTS = frozenset({2152, 4754, 4755, 4789, 6080, 6081, 6635, 8472})
UDP_TUNNEL_PORTS_EITHER = frozenset({4500})  # ESP in UDP, RFC 3948


class ChecksumState(IntEnum):
    """What is known of a packet's transport checksum."""

    UNKNOWN = 1
    """Not verified by anybody; the engine verifies it when a merge is at stake."""
    VERIFIED = 2
    """Complete and found right, by the engine or by somebody it trusts."""
    PARTIAL = 3
    """The field holds the pseudo-header sum only (VIRTIO_NET_HDR_F_NEEDS_CSUM)."""


class IpIdMode(IntEnum):
    """How the IPv4 IDs of a super-packet's segments follow from the first one's."""

    NONE = 0
    """There is no ID (IPv6), or only one segment."""
    FIXED = 1
    """All equal."""
    INCREMENT = 2
    """Each one more than the one before, modulo 65536."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sink can take now. Against `GroConfig` the stricter of the two wins.

    A sink offers it as its ``limits`` attribute, which the engine reads when a batch begins: to
    withdraw merging, a sink replaces the object by another. The fields are those of `GroConfig`.
    The smaller number is the stricter, False is stricter than True, ``complete`` than
    ``partial``, and ``refuse`` than ``df`` than ``merge``.
    """

    tcp: bool = True
    udp: bool = False
    max_size: int = MAX_IP_LENGTH
    max_tcp_segments: int | None = None
    max_udp_segments: int = 64
    delivered_checksums: Delivered = "complete"
    fixed_ip_ids: FixedIpIds = "merge"

    def __post_init__(self) -> None:
        _check_shared(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroConfig:
    """How an engine merges. Frozen and keyword-only; ConfigError names the field it refuses.

    link: the link layer of every packet (see `Link`).
    capacity: packets that may be pending at once, 1 to 65,536; a longer batch is flushed in
        pieces of this size. Everything the engine needs is allocated for it once.
    tcp, udp: which transports are merged. UDP super-packets need a consumer that splits by
        gso_size, so they are off unless asked for.
    received_checksums: ``verify`` computes a transport checksum before a merge is made with it;
        ``trust`` takes it as verified. A packet's own `ChecksumState` overrides either.
    delivered_checksums: ``complete`` writes the full transport checksum of a super-packet,
        ``partial`` the pseudo-header sum that a virtio_net_hdr with NEEDS_CSUM goes with. With
        ``complete``, a packet that came with a partial checksum is delivered with it completed,
        even alone in its batch; that is the one change to a packet that is passed through.
    max_size: largest IP packet delivered as a result of merging, in bytes, to 65,535.
    max_frame: the same with the link header counted, in bytes; None: not limited.
    max_tcp_segments: segments in one TCP super-packet, at least 1; None: not limited.
    max_udp_segments: datagrams in one UDP super-packet, 1 to 128. Linux cut at 64 before 6.9.
    fixed_ip_ids: whether IPv4 segments of equal ID merge: ``merge``; ``df``: only with
        don't-fragment set, where the ID means nothing (RFC 6864 section 4.1); ``refuse``: never.
        A kernel that cuts a super-packet always counts IDs up.
    udp_tunnel_ports, udp_tunnel_ports_either: UDP is not merged towards these destination
        ports, or from or to these. Any iterable of port numbers is taken and kept as a frozenset.
    max_slabs: header spaces that views kept by a hook may pin, before PinnedError.
    """

    link: Link = "ip"
    capacity: int = 1024
    tcp: bool = True
    udp: bool = False
    received_checksums: Received = "verify"
    delivered_checksums: Delivered = "complete"
    max_size: int = MAX_IP_LENGTH
    max_frame: int | None = None
    max_tcp_segments: int | None = None
    max_udp_segments: int = 64
    fixed_ip_ids: FixedIpIds = "merge"
    udp_tunnel_ports: Iterable[int] = UDP_TUNNEL_PORTS
    udp_tunnel_ports_either: Iterable[int] = UDP_TUNNEL_PORTS_EITHER
    max_slabs: int = 8

    def __post_init__(self) -> None:
        _choice(self, "link", Link)
        _integer(self, "capacity", 1, MAX_CAPACITY)
        _choice(self, "received_checksums", Received)
        _integer(self, "max_frame", 1, MAX_IP_LENGTH + 65535, optional=True)
        _integer(self, "max_slabs", 1, 1024)
        _check_shared(self)
        for name in ("udp_tunnel_ports", "udp_tunnel_ports_either"):
            object.__setattr__(self, name, _ports(name, getattr(self, name)))


@lru_cache(maxsize=32)
def port_map(ports: frozenset[int], either: frozenset[int]) -> bytes:
    """One byte per port number: bit 0 where it matters as destination, bit 1 on either side."""
    table = bytearray(65536)
    for port in ports:
        table[port] |= 1
    for port in either:
        table[port] |= 2
    return bytes(table)


def _check_shared(owner: GroConfig | Limits) -> None:
    for name in ("tcp", "udp"):
        if not isinstance(getattr(owner, name), bool):
            raise ConfigError(name, f"{getattr(owner, name)!r} is not a bool")
    _integer(owner, "max_size", 1, MAX_IP_LENGTH)
    _integer(owner, "max_tcp_segments", 1, MAX_IP_LENGTH, optional=True)
    _integer(owner, "max_udp_segments", 1, MAX_UDP_SEGMENTS)
    _choice(owner, "delivered_checksums", Delivered)
    _choice(owner, "fixed_ip_ids", FixedIpIds)


def within(name: str, value: object, low: int, high: int, *, what: str = "an integer") -> int:
    """``value`` as a plain int, where it is an integer from ``low`` to ``high``.

    Raises ConfigError, which names the parameter and says ``what`` it has to be, for anything
    else, True and False included.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(name, f"{value!r} is not {what}")
    value = int.__index__(value)  # a subclass of int may compare as it likes
    if not low <= value <= high:
        raise ConfigError(name, f"{value} is not within {low} to {high}")
    return value


def _integer(owner: object, name: str, low: int, high: int, *, optional: bool = False) -> None:
    value = getattr(owner, name)
    if optional and value is None:
        return
    what = "an integer or None" if optional else "an integer"
    object.__setattr__(owner, name, within(name, value, low, high, what=what))


def _choice(owner: object, name: str, literal: object) -> None:
    value = getattr(owner, name)
    choices = get_args(literal)
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(name, f"{value!r} is not one of {', '.join(map(repr, choices))}")


def _ports(name: str, value: object) -> frozenset[int]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(name, f"{value!r} is not a collection of port numbers")
    ports = list(value)
    for port in ports:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
            raise ConfigError(name, f"{port!r} is not a port number (0 to 65535)")
    return frozenset(ports)
