"""What an interface is like: its link, and the features that decide who merges and who cuts."""

import os
import socket
import struct
import sys
from array import array

from netstack_gro.dispatchers import packet_socket
from netstack_gro.dispatchers.interfaces import SIOCETHTOOL, Interface
from netstack_gro.probe.netlink import attributes, read_link
from netstack_gro.probe.report import Feature, InterfaceReport

if sys.platform == "linux":
    import fcntl

__all__ = ["describe"]

IFF_UP = 0x1  # include/uapi/linux/if.h
IFF_RUNNING = 0x40

# include/uapi/linux/if_link.h
IFLA_LINK = 5
IFLA_LINKINFO = 18
IFLA_INFO_KIND = 1  # within IFLA_LINKINFO
IFLA_LINK_NETNSID = 37  # there where IFLA_LINK is in another network namespace
IFLA_GSO_MAX_SIZE = 41
IFLA_GRO_MAX_SIZE = 58  # since 5.19
IFLA_GRO_IPV4_MAX_SIZE = 64  # since 6.3

# include/uapi/linux/ethtool.h
ETHTOOL_GDRVINFO = 0x03
ETHTOOL_GSTRINGS = 0x1B
ETHTOOL_GSSET_INFO = 0x37
ETHTOOL_GFEATURES = 0x3A  # since 2.6.39
ETH_SS_FEATURES = 4
_STRING = 32  # ETH_GSTRING_LEN
_DRVINFO = 196  # struct ethtool_drvinfo; the driver's name follows its first four bytes

# Names of net/ethtool/common.c, with the release of those that came later than the names.
_FEATURES: dict[str, tuple[str | None, str]] = {
    "rx-gro": ("2.6.29", "the kernel merges what is received, before packet sockets see it"),
    "rx-gro-hw": ("4.16", "the device merges what is received"),
    "rx-lro": (None, "the device merges what is received, and forgets how it was cut"),
    "rx-gro-list": ("5.6", "the kernel chains UDP datagrams that it forwards"),
    "rx-udp-gro-forwarding": ("5.12", "the kernel merges UDP that it forwards, too"),
    "rx-checksum": (None, "the device verifies checksums"),
    "rx-vlan-hw-parse": (None, "the device takes VLAN tags out of frames"),
    "tx-checksum-ipv4": (None, "the device fills in checksums of TCP and UDP over IPv4"),
    "tx-checksum-ipv6": (None, "the device fills in checksums of TCP and UDP over IPv6"),
    "tx-checksum-ip-generic": (None, "the device fills in any checksum"),
    "tx-generic-segmentation": (None, "the kernel cuts super-packets late, if the device cannot"),
    "tx-tcp-segmentation": (None, "the device cuts TCP over IPv4 (TSO)"),
    "tx-tcp6-segmentation": (None, "the device cuts TCP over IPv6"),
    "tx-udp-segmentation": ("4.18", "the device cuts UDP (USO)"),
}


def describe(name: str) -> InterfaceReport:
    """The interface of that name; what cannot be found out is left at its default."""
    try:
        found = Interface.find(name)
    except (OSError, ValueError) as error:
        return InterfaceReport(name=name, problem=getattr(error, "strerror", "") or str(error))
    flags = 0
    link: dict[int, bytes] = {}
    problem = ""
    try:
        flags, link = read_link(found.index)
    except OSError as error:
        problem = f"rtnetlink does not describe it: {error.strerror}"
    kind = _text(dict(attributes(link.get(IFLA_LINKINFO, b""))).get(IFLA_INFO_KIND, b""))
    peer = (_number(link, IFLA_LINK) or 0) if kind == "veth" else 0
    return InterfaceReport(
        name=found.name,
        problem=problem,
        index=found.index,
        link=packet_socket.LINKS.get(found.hardware),
        hardware=found.hardware,
        kind=kind,
        peer=_name(peer) if peer and IFLA_LINK_NETNSID not in link else "",
        peer_index=peer,
        driver=_driver(found.name),
        up=bool(flags & IFF_UP),
        running=bool(flags & IFF_RUNNING),
        mtu=found.mtu,
        gro_max_size=_number(link, IFLA_GRO_MAX_SIZE),
        gro_ipv4_max_size=_number(link, IFLA_GRO_IPV4_MAX_SIZE),
        gso_max_size=_number(link, IFLA_GSO_MAX_SIZE),
        features=_features(found.name),
    )


def _number(link: dict[int, bytes], attribute: int) -> int | None:
    value = link.get(attribute, b"")
    return struct.unpack("=I", value)[0] if len(value) == 4 else None


def _name(index: int) -> str:
    """The name of an interface of this network namespace; empty where it is gone."""
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""


def _text(data: bytes) -> str:
    return os.fsdecode(data.partition(b"\0")[0])


def _driver(name: str) -> str:
    """The driver's name; empty where it does not say."""
    answer = array("B", bytes(_DRVINFO))
    struct.pack_into("=I", answer, 0, ETHTOOL_GDRVINFO)
    try:
        _ethtool(name, answer)
    except OSError:
        return ""
    return _text(answer[4 : 4 + _STRING].tobytes())


def _features(name: str) -> tuple[Feature, ...]:
    """The features of `_FEATURES`; empty where the kernel does not list any."""
    try:
        names, words = _read_features(name)
    except (OSError, struct.error):
        return ()
    places = {each: place for place, each in enumerate(names)}
    result = []
    for each, (since, meaning) in _FEATURES.items():
        on, fixed = None, False
        place = places.get(each)
        if place is not None and place // 32 < len(words):
            # struct ethtool_get_features_block: available, requested, active, never_changed
            available, _, active, never = (word >> place % 32 & 1 for word in words[place // 32])
            on, fixed = bool(active), bool(never or not available)
        result.append(Feature(name=each, on=on, fixed=fixed, since=since, meaning=meaning))
    return tuple(result)


def _read_features(name: str) -> tuple[list[str], list[tuple[int, ...]]]:
    """The names of all features, by their bits, and the blocks of 32 bits."""
    # struct ethtool_sset_info: command, reserved, mask of sets, and a size for each of these
    info = array("B", struct.pack("=IIQI", ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0))
    _ethtool(name, info)
    (count,) = struct.unpack_from("=I", info, 16)
    # struct ethtool_gstrings: command, set, number of strings
    strings = array("B", struct.pack("=III", ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count))
    strings.frombytes(bytes(_STRING * count))
    _ethtool(name, strings)
    encoded = strings[12:].tobytes()
    names = [_text(encoded[at : at + _STRING]) for at in range(0, len(encoded), _STRING)]
    # struct ethtool_gfeatures: command, number of blocks
    blocks = -(-count // 32)
    features = array("B", struct.pack("=II", ETHTOOL_GFEATURES, blocks))
    features.frombytes(bytes(16 * blocks))
    _ethtool(name, features)
    return names, list(struct.iter_unpack("=4I", features[8:].tobytes()))


def _ethtool(name: str, command: "array[int]") -> None:
    """Have the kernel read and fill in a command's structure. OSError where it refuses."""
    # struct ifreq: a name of 16 bytes, and a union that begins with a pointer
    request = struct.pack("@16sP16x", os.fsencode(name), command.buffer_info()[0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, SIOCETHTOOL, request)
