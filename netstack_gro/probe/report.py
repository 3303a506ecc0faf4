"""What `probe` answers with: frozen records, and the object that ``--json`` prints."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from netstack_gro.config import Link

__all__ = ["Ability", "Answer", "Feature", "InterfaceReport", "ReceiveBuffer", "Report", "Right"]

_LOOPBACK = 772  # ARPHRD_LOOPBACK, include/uapi/linux/if_arp.h


class Answer(StrEnum):
    """Whether something works here."""

    YES = "yes"
    UNVERIFIABLE = "unverifiable"
    """The kernel accepted it, and cannot be asked whether it does it."""
    NO = "no"
    UNKNOWN = "unknown"
    """It could not be tried; ``detail`` says why, most often a right that is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """Something that a dispatcher or a sink uses, and whether it works here.

    name: as the kernel's headers have it. group: "dispatchers", "udp", "packet" or "tun".
    since: the Linux release that it came with, such as "4.18". meaning: what it is for.
    detail: what was found beyond the answer. advice: what to do where the answer is not yes.
    """

    name: str
    group: str
    answer: Answer
    since: str
    meaning: str
    detail: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A capability (capabilities(7)) of this process.

    held: in the effective set; None where the system does not tell. effective: it counts in the
    process's network namespace, which may belong to a user namespace that it does not rule.
    """

    name: str
    held: bool | None
    effective: bool
    meaning: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveBuffer:
    """What a UDP socket keeps unread before the kernel drops.

    limit: net.core.rmem_max, None where it cannot be read; a process with CAP_NET_ADMIN may go
    beyond it. bytes, trains: what `UdpDispatcher` gets, in bytes as it asks for them (the kernel
    accounts twice that) and in trains of 64 KiB; wanted_bytes, wanted_trains: what it asks for.
    """

    limit: int | None
    bytes: int
    trains: int
    wanted_bytes: int
    wanted_trains: int

    @property
    def enough(self) -> bool:
        """Whether as much was granted as was asked for."""
        return self.trains >= self.wanted_trains


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature of an interface, by the name that ``ethtool -k`` has for it.

    on: None where this kernel has no feature of that name. fixed: it cannot be switched.
    since: the Linux release that it came with; None where it is as old as the names.
    """

    name: str
    on: bool | None
    fixed: bool
    since: str | None
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceReport:
    """A network interface. ``problem`` says what could not be found out, and is else empty.

    link: the engine's link layer for it, None where there is none. hardware: its ARPHRD_ number
    (include/uapi/linux/if_arp.h). kind: "veth", "tun" and so on, "" for a physical one and lo.
    peer, peer_index: the other end of a veth; the name is "" where that is in another network
    namespace, whose number the index then is. Of others both are empty.
    up: set up; running: with a carrier as well. mtu: bytes of IP.
    gro_max_size, gro_ipv4_max_size, gso_max_size: bytes of what the kernel merges at most for
    IPv6, for IPv4, and of what may be sent; None where the kernel is too old to tell.
    """

    name: str
    problem: str = ""
    index: int = 0
    link: Link | None = None
    hardware: int = 0
    kind: str = ""
    peer: str = ""
    peer_index: int = 0
    driver: str = ""
    up: bool = False
    running: bool = False
    mtu: int = 0
    gro_max_size: int | None = None
    gro_ipv4_max_size: int | None = None
    gso_max_size: int | None = None
    features: tuple[Feature, ...] = ()

    def feature(self, name: str) -> bool:
        """Whether the feature of that name is there and on."""
        return any(each.name == name and bool(each.on) for each in self.features)

    @property
    def merged_before(self) -> tuple[str, ...]:
        """Why packets may come to it merged already, each with what to do about it."""
        if self.hardware == _LOOPBACK:  # what it receives does not pass through the kernel's GRO
            off = f"{_cut(self.name)}; ip link set {self.name} mtu 1500"
            large = f"each up to its MTU of {self.mtu:,} bytes"
            return (f"packets come over it uncut, {large}, unless: {off}",)
        reasons = []
        if self.feature("rx-gro"):
            off = f"ethtool -K {self.name} gro off"
            reasons.append(f"the kernel merges TCP first (rx-gro), unless: {off}")
        if self.kind == "veth":
            other = self.peer or f"interface {self.peer_index} of another network namespace"
            off = _cut(self.peer or "NAME")
            text = f"packets come uncut from the other end of the veth, {other}"
            reasons.append(f"{text}, unless: {off}")
        return tuple(reasons)


def _cut(name: str) -> str:
    """The command that has the kernel cut what is sent through an interface."""
    return f"ethtool -K {name} tso off gso off tx-udp-segmentation off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What this system, user and interface can do.

    version, engine: of this package. system, release: as uname(2) has them. user: the effective
    user ID, None where there is no such thing. problem: why nothing could be tried, or empty.
    """

    version: str
    engine: str
    system: str
    release: str
    user: int | None
    problem: str = ""
    rights: tuple[Right, ...] = ()
    abilities: tuple[Ability, ...] = ()
    receive_buffer: ReceiveBuffer | None = None
    interface: InterfaceReport | None = None

    def __getitem__(self, name: str) -> Ability:
        """The ability of that name; KeyError where there is none."""
        for each in self.abilities:
            if each.name == name:
                return each
        raise KeyError(name)

    def to_json(self) -> str:
        """The report as one line of JSON, in ASCII: rights, abilities and features by name."""
        buffer = self.receive_buffer
        result: dict[str, Any] = {
            "version": self.version,
            "engine": self.engine,
            "system": self.system,
            "release": self.release,
            "user": self.user,
            "problem": self.problem,
            "rights": _keyed(self.rights),
            "abilities": _keyed(self.abilities),
            "receive_buffer": None,
            "interface": None,
        }
        if buffer is not None:
            result["receive_buffer"] = {**asdict(buffer), "enough": buffer.enough}
        if self.interface is not None:
            features = _keyed(self.interface.features)
            result["interface"] = {**asdict(self.interface), "features": features}
        return json.dumps(result)


def _keyed(records: tuple[Right, ...] | tuple[Ability, ...] | tuple[Feature, ...]) -> Any:
    """The records as an object by their names, which the values need not repeat."""
    result = {}
    for record in records:
        values = asdict(record)
        result[values.pop("name")] = values
    return result
