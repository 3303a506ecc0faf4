"""The numbers of the interface's words, and of the wire's, as the hot modules use them.

Never compiled: in compiled code these are constants of ``codes.pxd``. Verdicts have the names of
`Verdict`, close reasons those of `CloseReason` behind ``CLOSED_``.
"""

from netstack_gro.config import ChecksumState, IpIdMode, Link
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import GsoType

ALONE = int(Verdict.ALONE)
DISABLED = int(Verdict.DISABLED)
LINK_TRUNCATED = int(Verdict.LINK_TRUNCATED)
NOT_IP = int(Verdict.NOT_IP)
VLAN_DEPTH = int(Verdict.VLAN_DEPTH)
IP_VERSION = int(Verdict.IP_VERSION)
IP_TRUNCATED = int(Verdict.IP_TRUNCATED)
IP_HEADER_LENGTH = int(Verdict.IP_HEADER_LENGTH)
IP_LENGTH_ZERO = int(Verdict.IP_LENGTH_ZERO)
TRUNCATED = int(Verdict.TRUNCATED)
TRAILING_BYTES = int(Verdict.TRAILING_BYTES)
IP_OPTIONS = int(Verdict.IP_OPTIONS)
FRAGMENT = int(Verdict.FRAGMENT)
IP_RESERVED_BIT = int(Verdict.IP_RESERVED_BIT)
IP_CHECKSUM = int(Verdict.IP_CHECKSUM)
EXTENSION_HEADER = int(Verdict.EXTENSION_HEADER)
OTHER_PROTOCOL = int(Verdict.OTHER_PROTOCOL)
TRANSPORT_TRUNCATED = int(Verdict.TRANSPORT_TRUNCATED)
HEADERS_TOO_LONG = int(Verdict.HEADERS_TOO_LONG)
TCP_DATA_OFFSET = int(Verdict.TCP_DATA_OFFSET)
TCP_SYN = int(Verdict.TCP_SYN)
TCP_RST = int(Verdict.TCP_RST)
TCP_URG = int(Verdict.TCP_URG)
TCP_CWR = int(Verdict.TCP_CWR)
TCP_NO_PAYLOAD = int(Verdict.TCP_NO_PAYLOAD)
UDP_LENGTH = int(Verdict.UDP_LENGTH)
UDP_EMPTY = int(Verdict.UDP_EMPTY)
UDP_NO_CHECKSUM = int(Verdict.UDP_NO_CHECKSUM)
UDP_PORT = int(Verdict.UDP_PORT)
ALREADY_AGGREGATED = int(Verdict.ALREADY_AGGREGATED)
BAD_VNET_HEADER = int(Verdict.BAD_VNET_HEADER)
PROTOCOL_OFF = int(Verdict.PROTOCOL_OFF)
TOO_LARGE = int(Verdict.TOO_LARGE)
NEVER_MERGE = int(Verdict.NEVER_MERGE)
BAD_CHECKSUM = int(Verdict.BAD_CHECKSUM)
MERGED = int(Verdict.MERGED)
OPENED = int(Verdict.OPENED)

CLOSED_BATCH_END = int(CloseReason.BATCH_END)
CLOSED_BARRIER = int(CloseReason.BARRIER)
CLOSED_PASSED = int(CloseReason.PASSED)
CLOSED_SHORT = int(CloseReason.SHORT)
CLOSED_PSH = int(CloseReason.PSH)
CLOSED_FIN = int(CloseReason.FIN)
CLOSED_LINK_HEADER = int(CloseReason.LINK_HEADER)
CLOSED_TOS = int(CloseReason.TOS)
CLOSED_TTL = int(CloseReason.TTL)
CLOSED_DF = int(CloseReason.DF)
CLOSED_FLOW_LABEL = int(CloseReason.FLOW_LABEL)
CLOSED_EXTENSION_HEADERS = int(CloseReason.EXTENSION_HEADERS)
CLOSED_ACK = int(CloseReason.ACK)
CLOSED_WINDOW = int(CloseReason.WINDOW)
CLOSED_URGENT_POINTER = int(CloseReason.URGENT_POINTER)
CLOSED_TCP_FLAGS = int(CloseReason.TCP_FLAGS)
CLOSED_TCP_OPTIONS = int(CloseReason.TCP_OPTIONS)
CLOSED_SEQUENCE = int(CloseReason.SEQUENCE)
CLOSED_IP_ID = int(CloseReason.IP_ID)
CLOSED_CHECKSUM_STATE = int(CloseReason.CHECKSUM_STATE)
CLOSED_LARGER = int(CloseReason.LARGER)
CLOSED_SIZE = int(CloseReason.SIZE)
CLOSED_COUNT = int(CloseReason.COUNT)
CLOSED_BAD_CHECKSUM = int(CloseReason.BAD_CHECKSUM)

UNKNOWN = int(ChecksumState.UNKNOWN)
VERIFIED = int(ChecksumState.VERIFIED)
PARTIAL = int(ChecksumState.PARTIAL)

NO_ID = int(IpIdMode.NONE)
FIXED_ID = int(IpIdMode.FIXED)
INCREMENT_ID = int(IpIdMode.INCREMENT)

GSO_TCPV4 = int(GsoType.TCPV4)
GSO_TCPV6 = int(GsoType.TCPV6)
GSO_UDP_L4 = int(GsoType.UDP_L4)

# The layouts of link headers, by the names of `config.Link`.
LINK_IP = 0
LINK_IPV4 = 1
LINK_IPV6 = 2
LINK_ETHERNET = 3
LINK_NULL = 4
LINK_LOOP = 5
LINK_SLL = 6
LINK_SLL2 = 7
LINKS: dict[Link, int] = {
    "ip": LINK_IP,
    "ipv4": LINK_IPV4,
    "ipv6": LINK_IPV6,
    "ethernet": LINK_ETHERNET,
    "null": LINK_NULL,
    "loop": LINK_LOOP,
    "sll": LINK_SLL,
    "sll2": LINK_SLL2,
}

# What `fixed_ip_ids` says, the stricter the higher.
FIXED_IDS = {"merge": 0, "df": 1, "refuse": 2}
FIXED_IDS_REFUSED = 2

# IANA protocol numbers.
TCP = 6
UDP = 17
HOP_BY_HOP = 0
ROUTING = 43
FRAGMENT_HEADER = 44
DESTINATION = 60

HEADERS_LIMIT = 256  # what the engine's header space holds for one packet
EXTENSION_LIMIT = 8  # bounds the walk; Linux's default too (net.ipv6.max_hbh_opts_number)
NO_GSO_SIZE = 0xFFFF  # GSO_BY_FRAGS, include/linux/skbuff.h: not a size
