"""The link types that a capture may have, and what the engine calls them.

Numbers are LINKTYPE_ values as capture files hold them, which differ from some systems' DLT_
values: https://www.tcpdump.org/linktypes.html.
"""

from collections.abc import Mapping
from types import MappingProxyType

from netstack_gro.config import Link
from netstack_gro.errors import UnsupportedLinkTypeError

__all__ = ["LINK_NAMES", "link_name"]

LINK_NAMES: Mapping[int, Link] = MappingProxyType(
    {
        0: "null",  # LINKTYPE_NULL: BSD loopback, address family in the writer's byte order
        1: "ethernet",  # LINKTYPE_ETHERNET
        12: "ip",  # DLT_RAW of most systems, found as it is in old files
        14: "ip",  # DLT_RAW of OpenBSD, likewise
        101: "ip",  # LINKTYPE_RAW
        108: "loop",  # LINKTYPE_LOOP: OpenBSD loopback, address family in network byte order
        113: "sll",  # LINKTYPE_LINUX_SLL
        228: "ipv4",  # LINKTYPE_IPV4
        229: "ipv6",  # LINKTYPE_IPV6
        276: "sll2",  # LINKTYPE_LINUX_SLL2
    }
)
"""Every link type that is read, with the name that `GroConfig.link` has for it."""

# Only so that a refusal can say what the file holds; a number without a name is refused as well.
_KNOWN_NAMES = {
    3: "AX25",
    6: "IEEE802_5",
    7: "ARCNET_BSD",
    8: "SLIP",
    9: "PPP",
    10: "FDDI",
    50: "PPP_HDLC",
    51: "PPP_ETHER",
    100: "ATM_RFC1483",
    104: "C_HDLC",
    105: "IEEE802_11",
    107: "FRELAY",
    114: "LTALK",
    117: "PFLOG",
    119: "IEEE802_11_PRISM",
    122: "IP_OVER_FC",
    127: "IEEE802_11_RADIOTAP",
    143: "DOCSIS",
    163: "IEEE802_11_AVS",
    166: "PPP_PPPD",
    189: "USB_LINUX",
    192: "PPI",
    195: "IEEE802_15_4_WITHFCS",
    201: "BLUETOOTH_HCI_H4_WITH_PHDR",
    220: "USB_LINUX_MMAPPED",
    227: "CAN_SOCKETCAN",
    230: "IEEE802_15_4_NOFCS",
    239: "NFLOG",
    249: "USBPCAP",
    251: "BLUETOOTH_LE_LL",
    252: "WIRESHARK_UPPER_PDU",
    253: "NETLINK",
    258: "PKTAP",
    271: "VSOCK",
}
_KNOWN_NAMES.update({147 + number: f"USER{number}" for number in range(16)})


def link_name(link_type: int, name: str = "capture", offset: int | None = None) -> Link:
    """The engine's name for a LINKTYPE_ number.

    ``name`` and ``offset`` are what an error says of the file: UnsupportedLinkTypeError, with
    the number and, where it is a well-known one, the name of the link type.
    """
    try:
        return LINK_NAMES[link_type]
    except KeyError:
        raise UnsupportedLinkTypeError(
            name, link_type, offset, _KNOWN_NAMES.get(link_type)
        ) from None
