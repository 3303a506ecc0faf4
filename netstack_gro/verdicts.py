"""Why a packet was merged, opened a super-packet or was passed through, and why a head closed.

Both lists are part of the published interface. Of `Verdict` the members stand in order of
precedence: the first that applies to a packet is the packet's.
"""

from enum import IntEnum

__all__ = ["CloseReason", "Verdict"]


class Verdict(IntEnum):
    """What became of one input packet. The first member that applies is the packet's.

    Every input packet is counted under exactly one verdict. `MERGED` counts each input of a
    super-packet, its first one included; `OPENED` a candidate that nothing was merged with.
    All others were passed through unmodified.
    """

    ALONE = 0
    """The only packet of its batch: delivered before it was looked at."""
    DISABLED = 1
    """Merging is switched off (`GroDispatcher.enabled`)."""

    LINK_TRUNCATED = 2
    """The packet ends within its link header."""
    NOT_IP = 3
    """The link header announces something that is neither IPv4 nor IPv6."""
    VLAN_DEPTH = 4
    """More than two VLAN tags."""
    IP_VERSION = 5
    """The version nibble is not the one that the link announces."""
    IP_TRUNCATED = 6
    """The packet ends within its IP header or an extension header."""
    IP_HEADER_LENGTH = 7
    """IPv4: IHL below 5, or a total length shorter than the header."""
    IP_LENGTH_ZERO = 8
    """IPv4 total length or IPv6 payload length 0: a jumbogram, or captured before segmentation."""
    TRUNCATED = 9
    """Fewer bytes were received or captured than the IP header or the wire length says."""
    TRAILING_BYTES = 10
    """Bytes follow the IP packet: padding, a trailer, a frame check sequence."""
    IP_OPTIONS = 11
    """IPv4 options (IHL above 5)."""
    FRAGMENT = 12
    """An IPv4 fragment, or an IPv6 packet with a fragment header."""
    IP_RESERVED_BIT = 13
    """The reserved bit of the IPv4 flags is set."""
    IP_CHECKSUM = 14
    """The IPv4 header checksum is not the canonical one."""
    EXTENSION_HEADER = 15
    """IPv6: an extension header that is not merged (ESP, AH and the like), hop-by-hop out of place,
    a routing header with segments left, or more than 8 extension headers."""
    OTHER_PROTOCOL = 16
    """Neither TCP nor UDP."""
    TRANSPORT_TRUNCATED = 17
    """The IP packet ends within its transport header."""
    HEADERS_TOO_LONG = 18
    """More than 256 bytes of headers."""

    TCP_DATA_OFFSET = 19
    """TCP data offset below 5, or past the end of the packet."""
    TCP_SYN = 20
    TCP_RST = 21
    TCP_URG = 22
    TCP_CWR = 23
    TCP_NO_PAYLOAD = 24
    """A pure acknowledgement, or a FIN without data."""

    UDP_LENGTH = 25
    """The UDP length field is not the IP payload length."""
    UDP_EMPTY = 26
    UDP_NO_CHECKSUM = 27
    """UDP checksum 0: none was sent."""
    UDP_PORT = 28
    """A port of a tunnel (`GroConfig.udp_tunnel_ports`, `udp_tunnel_ports_either`)."""

    ALREADY_AGGREGATED = 29
    """The packet arrived as a super-packet; delivered as what it is."""
    BAD_VNET_HEADER = 30
    """The packet's virtio_net_hdr does not describe it."""
    PROTOCOL_OFF = 31
    """Merging of this transport protocol is off (`GroConfig.tcp`, `GroConfig.udp`, or the sink)."""
    TOO_LARGE = 32
    """The packet alone exceeds the largest super-packet that may be delivered."""
    NEVER_MERGE = 33
    """The `never_merge` predicate claimed the flow that the packet would have opened a head of."""
    BAD_CHECKSUM = 34
    """A merge was at stake, and the transport checksum is not the canonical one."""

    MERGED = 35
    """Part of a super-packet of at least two inputs."""
    OPENED = 36
    """A candidate that nothing was merged with."""


class CloseReason(IntEnum):
    """Why nothing more was appended to a head.

    Every delivered packet whose verdict is `MERGED` or `OPENED` is counted under exactly one
    reason other than `NOT_HELD`. Where several fields broke a flow at once, the first member
    that applies is the reason.
    """

    NOT_HELD = 0
    """The packet was passed through; it was never a head."""

    BATCH_END = 1
    BARRIER = 2
    """Every head closed at once, so that order holds: a packet whose ports cannot be read arrived,
    or merging was switched off or on."""
    PASSED = 3
    """A packet of the flow was passed through behind it."""

    SHORT = 4
    """Its last segment was shorter than gso_size."""
    PSH = 5
    FIN = 6

    LINK_HEADER = 7
    """The link header differed (source or VLAN priority, DEI)."""
    TOS = 8
    """TOS or traffic class differed, ECN included."""
    TTL = 9
    """TTL or hop limit differed."""
    DF = 10
    """The IPv4 don't-fragment bit differed."""
    FLOW_LABEL = 11
    EXTENSION_HEADERS = 12
    ACK = 13
    """The acknowledgement number differed."""
    WINDOW = 14
    URGENT_POINTER = 15
    TCP_FLAGS = 16
    """A flag other than FIN and PSH, or a reserved bit, differed."""
    TCP_OPTIONS = 17
    """The options, or the data offset, differed."""
    SEQUENCE = 18
    """A gap, a duplicate or an overlap."""
    IP_ID = 19
    """The IPv4 ID neither stayed nor counted up by one, or the consumer refuses fixed IDs."""
    CHECKSUM_STATE = 20
    """Received with another checksum state (verified, partial, unknown)."""
    LARGER = 21
    """A segment longer than gso_size arrived."""
    SIZE = 22
    """One more segment would exceed the largest super-packet."""
    COUNT = 23
    """The segment limit was reached."""
    BAD_CHECKSUM = 24
    """The packet that would have extended it has a bad transport checksum."""
