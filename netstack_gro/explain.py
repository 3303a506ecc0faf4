"""What verdicts and close reasons mean, in a few words for people."""

from collections.abc import Mapping
from types import MappingProxyType

from netstack_gro.verdicts import CloseReason, Verdict

__all__ = ["CLOSE_REASONS", "VERDICTS"]

VERDICTS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.ALONE: "the only packet of its batch",
        Verdict.DISABLED: "merging was switched off",
        Verdict.LINK_TRUNCATED: "ends within its link header",
        Verdict.NOT_IP: "neither IPv4 nor IPv6 (ARP, for example)",
        Verdict.VLAN_DEPTH: "more than two VLAN tags",
        Verdict.IP_VERSION: "IP version other than the link header says",
        Verdict.IP_TRUNCATED: "ends within its IP header",
        Verdict.IP_HEADER_LENGTH: "impossible IPv4 header or total length",
        Verdict.IP_LENGTH_ZERO: "IP length 0: captured before segmentation, or a jumbogram",
        Verdict.TRUNCATED: "cut off: fewer bytes than its headers say",
        Verdict.TRAILING_BYTES: "bytes behind the IP packet, such as Ethernet padding",
        Verdict.IP_OPTIONS: "IPv4 options",
        Verdict.FRAGMENT: "an IP fragment",
        Verdict.IP_RESERVED_BIT: "the reserved IPv4 flag is set",
        Verdict.IP_CHECKSUM: "IPv4 header checksum wrong",
        Verdict.EXTENSION_HEADER: "an IPv6 extension header that is not merged",
        Verdict.OTHER_PROTOCOL: "neither TCP nor UDP",
        Verdict.TRANSPORT_TRUNCATED: "ends within its TCP or UDP header",
        Verdict.HEADERS_TOO_LONG: "over 256 bytes of headers",
        Verdict.TCP_DATA_OFFSET: "impossible TCP data offset",
        Verdict.TCP_SYN: "TCP SYN: opens a connection",
        Verdict.TCP_RST: "TCP RST: resets a connection",
        Verdict.TCP_URG: "TCP urgent data",
        Verdict.TCP_CWR: "TCP CWR: the sender answers a congestion mark",
        Verdict.TCP_NO_PAYLOAD: "TCP without data: a pure acknowledgement, or a FIN",
        Verdict.UDP_LENGTH: "UDP length differs from what IP carries",
        Verdict.UDP_EMPTY: "UDP without data",
        Verdict.UDP_NO_CHECKSUM: "UDP without checksum",
        Verdict.UDP_PORT: "UDP of a tunnel (VXLAN, Geneve, GTP, IPsec, ...)",
        Verdict.ALREADY_AGGREGATED: "several packets in one already",
        Verdict.BAD_VNET_HEADER: "its virtio_net_hdr does not fit it",
        Verdict.PROTOCOL_OFF: "merging of its protocol is off",
        Verdict.TOO_LARGE: "larger than a super-packet may be",
        Verdict.NEVER_MERGE: "its flow is excluded",
        Verdict.BAD_CHECKSUM: "TCP or UDP checksum wrong",
        Verdict.MERGED: "merged into a super-packet",
        Verdict.OPENED: "could be merged, but nothing followed that fits",
    }
)
"""Why a packet was merged or not."""

CLOSE_REASONS: Mapping[CloseReason, str] = MappingProxyType(
    {
        CloseReason.BATCH_END: "the batch ended",
        CloseReason.BARRIER: "a packet that may be of any flow came (a fragment, for example)",
        CloseReason.PASSED: "a packet of the flow that cannot be merged came",
        CloseReason.SHORT: "its last segment was shorter than the others",
        CloseReason.PSH: "its last segment had PSH",
        CloseReason.FIN: "its last segment had FIN",
        CloseReason.LINK_HEADER: "the next one's link header differs",
        CloseReason.TOS: "the next one's TOS or traffic class differs (ECN, for example)",
        CloseReason.TTL: "the next one's TTL or hop limit differs",
        CloseReason.DF: "the next one's don't-fragment bit differs",
        CloseReason.FLOW_LABEL: "the next one's flow label differs",
        CloseReason.EXTENSION_HEADERS: "the next one's extension headers differ",
        CloseReason.ACK: "the next one acknowledges something else",
        CloseReason.WINDOW: "the next one's window differs",
        CloseReason.URGENT_POINTER: "the next one's urgent pointer differs",
        CloseReason.TCP_FLAGS: "the next one's TCP flags differ",
        CloseReason.TCP_OPTIONS: "the next one's TCP options differ (timestamps, for example)",
        CloseReason.SEQUENCE: "the next one does not follow in sequence",
        CloseReason.IP_ID: "the next one's IPv4 ID does not follow",
        CloseReason.CHECKSUM_STATE: "the next one's checksum is partial, or no longer is",
        CloseReason.LARGER: "the next one is larger",
        CloseReason.SIZE: "the largest size was reached",
        CloseReason.COUNT: "the largest number of segments was reached",
        CloseReason.BAD_CHECKSUM: "the next one's checksum is wrong",
    }
)
"""Why nothing more was appended to a super-packet, or to a candidate that stayed alone."""
