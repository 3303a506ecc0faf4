"""The ways between the two sides that the recordings use, each with its tap.

    direct    left:eth0 ------------------------ right:eth0
    cabled    left:eth0 --- veth (cable) veth --- right:eth0
    tagged    left:eth0 --- veth (cable) trunk0 --- trunk1 (cable) veth --- right:eth0
    tunnel    left:tun0 -------- (cable) -------- right:tun0
    twofold   two direct ways side by side, and one tap for every device of the right side

The tap sits at the right side, where packets arrive, unless it is said otherwise.
"""

import heapq
from dataclasses import dataclass, field

from pcaps.recorder.cable import Cable, Direction, Tagging, Untagging
from pcaps.recorder.network import Lab, Namespace, Tun
from pcaps.recorder.tap import Frame, PacketEnd, Tap
from pcaps.recorder.traffic import Side

__all__ = ["Path", "cabled", "direct", "tagged", "tunnel", "twofold"]

LEFT4, RIGHT4 = "192.0.2.1", "192.0.2.2"  # RFC 5737
LEFT6, RIGHT6 = "2001:db8::1", "2001:db8::2"  # RFC 3849
LEFT4_SECOND, RIGHT4_SECOND = "198.51.100.1", "198.51.100.2"
LEFT6_SECOND, RIGHT6_SECOND = "2001:db8:1::1", "2001:db8:1::2"
# Locally administered
LEFT_MAC, RIGHT_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
LEFT_MAC_SECOND, RIGHT_MAC_SECOND = "02:00:00:00:01:01", "02:00:00:00:01:02"
CABLE_MACS = tuple(f"02:00:00:00:02:0{number}" for number in range(1, 5))

LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
LINKTYPE_LINUX_SLL2 = 276
TAG_BYTES = 4


@dataclass
class Path:
    """Two sides with a way between them, and the taps of the recording in the file's order."""

    left: Side
    right: Side
    taps: list[tuple[str, int, Tap]] = field(default_factory=list)
    """Interface name, link type, tap."""
    second: tuple[Side, Side] | None = None

    def sysctl(self, key: str, value: str) -> None:
        """Write a setting of both sides."""
        for side in (self.left, self.right):
            side.namespace.sysctl(key, value)

    def interfaces(self) -> list[tuple[str, int]]:
        return [(name, link_type) for name, link_type, _tap in self.taps]

    def frames(self) -> list[tuple[int, Frame]]:
        """What the taps saw, by time, each tap's frames in the kernel's order."""
        seen = [
            [(interface, frame) for frame in tap.frames()]
            for interface, (_name, _link_type, tap) in enumerate(self.taps)
        ]
        return list(heapq.merge(*seen, key=lambda each: each[1].timestamp_ns))


def _sides(lab: Lab) -> tuple[Side, Side]:
    return (
        Side(lab.namespace("left"), LEFT4, LEFT6),
        Side(lab.namespace("right"), RIGHT4, RIGHT6),
    )


def _bring_up(left: Side, right: Side, interface: str) -> None:
    for side in (left, right):
        side.namespace.bring_up(interface, tuple(_with_lengths(side)))
    for side in (left, right):
        side.namespace.wait_until_ready(interface)


def _with_lengths(side: Side) -> list[str]:
    return [f"{text}/{64 if ':' in text else 24}" for text in side.addresses.values()]


def _tap(lab: Lab, path: Path, namespace: Namespace, interface: str, name: str) -> None:
    tap = Tap(namespace, interface)
    lab.stack.callback(tap.close)
    path.taps.append((name, LINKTYPE_ETHERNET, tap))


def direct(
    lab: Lab,
    *,
    mtu: int = 1500,
    taps: tuple[str, ...] = ("right",),
    transmit_checksum: bool = False,
) -> Path:
    """One veth pair. `transmit_checksum` leaves the left side's checksums to its device."""
    left, right = _sides(lab)
    lab.veth(
        (left.namespace, "eth0"),
        (right.namespace, "eth0"),
        mtu=mtu,
        near_mac=LEFT_MAC,
        far_mac=RIGHT_MAC,
        near_transmit_checksum=transmit_checksum,
    )
    _bring_up(left, right, "eth0")
    path = Path(left, right)
    for side in taps:
        namespace = {"left": left, "right": right}[side].namespace
        _tap(lab, path, namespace, "eth0", side if len(taps) > 1 else "eth0")
    return path


def _cable_devices(lab: Lab, left: Side, right: Side, mtu: int) -> Namespace:
    middle = lab.namespace("cable")
    for side, mac, port, port_mac in (
        (left, LEFT_MAC, "port0", CABLE_MACS[0]),
        (right, RIGHT_MAC, "port1", CABLE_MACS[1]),
    ):
        lab.veth((side.namespace, "eth0"), (middle, port), mtu=mtu, near_mac=mac, far_mac=port_mac)
        middle.bring_up(port, ())
    _bring_up(left, right, "eth0")
    return middle


def _end(lab: Lab, namespace: Namespace, interface: str) -> PacketEnd:
    end = PacketEnd(namespace, interface)
    lab.stack.callback(end.close)
    return end


def cabled(lab: Lab, rightwards: Direction, leftwards: Direction | None = None) -> Path:
    """A user-space cable that does things to the frames."""
    left, right = _sides(lab)
    middle = _cable_devices(lab, left, right, 1500)
    cable = Cable(
        _end(lab, middle, "port0"),
        _end(lab, middle, "port1"),
        rightwards=rightwards,
        leftwards=leftwards,
    )
    lab.stack.callback(cable.unplug)
    path = Path(left, right)
    _tap(lab, path, right.namespace, "eth0", "eth0")
    return path


def tagged(lab: Lab, *tags: tuple[int, int]) -> Path:
    """A trunk that carries VLAN tags, tapped at its right end."""
    left, right = _sides(lab)
    middle = _cable_devices(lab, left, right, 1500)
    lab.veth(
        (middle, "trunk0"),
        (middle, "trunk1"),
        mtu=1500 + TAG_BYTES * len(tags),
        near_mac=CABLE_MACS[2],
        far_mac=CABLE_MACS[3],
    )
    middle.bring_up("trunk0", ())
    middle.bring_up("trunk1", ())
    for port, trunk in (("port0", "trunk0"), ("port1", "trunk1")):
        cable = Cable(
            _end(lab, middle, port),
            _end(lab, middle, trunk),
            rightwards=Tagging(*tags),
            leftwards=Untagging(len(tags)),
        )
        lab.stack.callback(cable.unplug)
    path = Path(left, right)
    _tap(lab, path, middle, "trunk1", "trunk1")
    return path


def tunnel(lab: Lab) -> Path:
    """Two TUN devices: IP packets without a link header."""
    left, right = _sides(lab)
    ends = []
    for side in (left, right):
        end = Tun(side.namespace, "tun0")
        lab.stack.callback(end.close)
        ends.append(end)
    _bring_up(left, right, "tun0")
    cable = Cable(ends[0], ends[1])
    lab.stack.callback(cable.unplug)
    path = Path(left, right)
    tap = Tap(right.namespace, "tun0")
    lab.stack.callback(tap.close)
    path.taps.append(("tun0", LINKTYPE_RAW, tap))
    return path


def twofold(lab: Lab) -> Path:
    """Two veth pairs, and one cooked tap for every device of the right side."""
    path = direct(lab, taps=())
    second = (
        Side(path.left.namespace, LEFT4_SECOND, LEFT6_SECOND),
        Side(path.right.namespace, RIGHT4_SECOND, RIGHT6_SECOND),
    )
    lab.veth(
        (path.left.namespace, "eth1"),
        (path.right.namespace, "eth1"),
        mtu=1500,
        near_mac=LEFT_MAC_SECOND,
        far_mac=RIGHT_MAC_SECOND,
    )
    _bring_up(*second, "eth1")
    path.second = second
    tap = Tap(path.right.namespace, None)
    lab.stack.callback(tap.close)
    path.taps.append(("any", LINKTYPE_LINUX_SLL2, tap))
    return path
