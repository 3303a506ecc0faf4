"""What can be wrong with a packet's headers, or different about them."""

import contextlib
import struct
from collections.abc import Callable

from tests import builders as b
from tests.builders import TCP
from tests.drafts import BLOB, Change, Draft, enter, fault

TIMESTAMP = bytes.fromhex("0101080a") + bytes(8)  # NOP NOP timestamps, RFC 7323 appendix A
TUNNEL_PORTS = (4789, 8472, 6080, 6081, 4754, 4755, 6635, 2152)


# --- TCP flags, sequence numbers and sizes -------------------------------------------------------


def _flags(bits: int) -> Change:
    def change(draft: Draft, a: int) -> None:
        draft.fields["flags"] |= bits
        if a & 2:
            draft.payload = b""

    return change


for _name in ("syn", "rst", "urg", "cwr", "ece", "psh", "fin", "ae"):
    enter(_name, "tcp", _flags(getattr(b, _name.upper())))


def _plain(field: str, value: Callable[[int, int], int], needs: str = "") -> None:
    """Enter the change of one field; `value` makes the new one from the old one and the integer."""
    default = {"ttl": 64, "window": 512, "ack": 1, "flags": b.ACK, "df": 1}.get(field, 0)

    def change(draft: Draft, a: int) -> None:
        draft.change(field, value(draft.fields.get(field, default), a), a)

    enter(field, needs, change)


_plain("tos", lambda old, a: old ^ 4 << a % 6)
_plain("ttl", lambda old, a: (old - 1) & 0xFF)
_plain("df", lambda old, a: not old, "v4")
_plain("window", lambda old, a: (old + 1 + a) & 0xFFFF, "tcp")
_plain("ack", lambda old, a: (old + 1 + a) & 0xFFFFFFFF, "tcp")
_plain("urgent", lambda old, a: old ^ 1 << a % 16, "tcp")
_plain("flow_label", lambda old, a: old ^ 1 << a % 20, "v6")


@fault()
def ecn(draft: Draft, a: int) -> None:
    draft.change("tos", draft.fields.get("tos", 0) ^ 1 + a % 3, a)


@fault("tcp")
def flag_bits(draft: Draft, a: int) -> None:
    draft.change("flags", (a >> 1) & 0xFFF, a)


@fault("tcp")
def reserved_bits(draft: Draft, a: int) -> None:
    draft.change("flags", draft.fields["flags"] ^ 1 << 9 + a % 3, a)


@fault("tcp")
def no_ack(draft: Draft, a: int) -> None:
    draft.change("flags", draft.fields["flags"] & ~b.ACK, a)


@fault("tcp")
def pure_ack(draft: Draft, a: int) -> None:
    draft.payload = b""


@fault("tcp")
def gap(draft: Draft, a: int) -> None:
    draft.flow.seq = draft.fields["seq"] = (draft.fields["seq"] + 1 + a % 3000) & 0xFFFFFFFF


@fault("tcp")
def wrap(draft: Draft, a: int) -> None:
    draft.flow.seq = draft.fields["seq"] = 0xFFFFFFFF - a % (2 * len(draft.payload) + 2)


@fault()
def duplicate(draft: Draft, a: int) -> None:
    _behind(draft, len(draft.payload))


@fault("tcp")
def overlap(draft: Draft, a: int) -> None:
    _behind(draft, 1 + a % (len(draft.payload) + 1))
    draft.stay = bool(a & 1)


def _behind(draft: Draft, distance: int) -> None:
    draft.stay = True
    draft.resend(len(draft.payload), draft.flow.position() - distance)
    if draft.protocol == TCP:
        draft.fields["seq"] = (draft.fields["seq"] - distance) & 0xFFFFFFFF


@fault()
def swap(draft: Draft, a: int) -> None:
    """Nothing here: `Traffic.step` sends the packet after the one that follows it."""


@fault()
def shorter(draft: Draft, a: int) -> None:
    draft.resize(1 + a % max(len(draft.payload) - 1, 1))


@fault()
def larger(draft: Draft, a: int) -> None:
    draft.resize(len(draft.payload) + 1 + a % 200)


@fault()
def one_byte(draft: Draft, a: int) -> None:
    draft.resize(1)


@fault()
def huge(draft: Draft, a: int) -> None:
    draft.resize(draft.room() - a % 3 - (40 if draft.family == 6 and a & 4 else 0))


@fault()
def fill(draft: Draft, a: int) -> None:
    """What makes the flow's run exactly as long as an IP packet may be, or one off."""
    room = 65535 - draft.network_header() - draft.transport_header - draft.flow.run
    draft.resize(room - 1 + a % 3)


@fault("tcp")
def option_bytes(draft: Draft, a: int) -> None:
    options = bytearray(draft.fields.get("tcp_options") or TIMESTAMP)
    options[-1 - a % 4 if len(options) >= 4 else 0] ^= 1 + a % 255
    draft.change("tcp_options", bytes(options), a)


@fault("tcp")
def option_length(draft: Draft, a: int) -> None:
    options = draft.fields.get("tcp_options", b"")
    longer = options[4:] if a & 2 and options else options + b"\1\1\1\1"
    draft.change("tcp_options", longer[:40], a)


@fault("v4")
def id_jump(draft: Draft, a: int) -> None:
    draft.fields["ident"] = (draft.fields["ident"] + 2 + a % 65533) & 0xFFFF
    if a & 1:
        draft.flow.ident = draft.fields["ident"]


@fault("v4")
def id_repeat(draft: Draft, a: int) -> None:
    draft.fields["ident"] = draft.flow.ident = (draft.fields["ident"] - 1) & 0xFFFF


# --- IP headers ----------------------------------------------------------------------------------


@fault("v4")
def ip_options(draft: Draft, a: int) -> None:
    draft.fields["options"] = BLOB[a & 0xFF :][: 4 + 4 * (a % 10)]


enter("fragment_first", "v4", lambda d, a: d.fields.update(mf=True, df=False))
enter("fragment_middle", "v4", lambda d, a: d.fields.update(mf=True, fragment_offset=1 + a % 8191))
enter("fragment_last", "v4", lambda d, a: d.fields.update(fragment_offset=1 + a % 8191))
enter("reserved_bit", "v4", lambda d, a: d.fields.update(reserved_bit=True))
enter("total_zero", "v4", lambda d, a: d.fields.update(total_length=0))
enter("total_below_header", "v4", lambda d, a: d.fields.update(total_length=1 + a % 19))
enter("ihl_short", "v4", lambda d, a: d.fields.update(ihl=a % 5))
enter("ihl_long", "v4", lambda d, a: d.fields.update(ihl=6 + a % 10))
enter("version", "", lambda d, a: d.fields.update(version=(0, 5, 15, 10 - d.family)[a % 4]))
enter("payload_zero", "v6", lambda d, a: d.fields.update(payload_length=0))


def _ip_length(draft: Draft, difference: int) -> None:
    name, fixed = ("total_length", 20) if draft.family == 4 else ("payload_length", 0)
    network = draft.network_header() - (20 if draft.family == 4 else 40)
    length = fixed + network + draft.transport_header + len(draft.payload)
    draft.fields[name] = min(max(length + difference, 1), 65535)


enter("length_short", "", lambda d, a: _ip_length(d, -1 - a % (len(d.payload) + 28)))
enter("length_long", "", lambda d, a: _ip_length(d, 1 + a % 2000))


def _header_checksum(draft: Draft) -> int:
    return int.from_bytes(draft.ip_packet()[10:12], "big")


@fault("v4")
def header_checksum_bad(draft: Draft, a: int) -> None:
    draft.fields["header_checksum"] = _header_checksum(draft) ^ 1 << a % 16


@fault("v4")
def header_checksum_zero(draft: Draft, a: int) -> None:
    draft.fields["header_checksum"] = 0


@fault("v4")
def header_checksum_is_zero(draft: Draft, a: int) -> None:
    draft.fields["ident"] = 0
    draft.fields["ident"] = _header_checksum(draft)  # the word that completes the sum to 0xFFFF


@fault("v4")
def header_checksum_ffff(draft: Draft, a: int) -> None:
    header_checksum_is_zero(draft, a)
    draft.fields["header_checksum"] = 0xFFFF


def _options(length: int, fill: int = 0) -> bytes:
    """An extension header of 8 * `length` bytes holding one PadN option (RFC 8200 section 4.2)."""
    first = bytes((0, length - 1, 1, min(8 * length - 4, 255)))
    return first + bytes((fill,)) * (8 * length - 4)


def _routing(left: int) -> bytes:
    return bytes((0, 2, 2, left, 0, 0, 0, 0)) + b.V6_DESTINATION  # type 2, RFC 6275 section 6.4


def extension(variant: int) -> tuple[tuple[int, bytes], ...]:
    """Extension headers that are merged: 0 is none."""
    return (
        (),
        ((b.HOP_BY_HOP, _options(1)),),
        ((b.DESTINATION, _options(1 + variant % 3, 0)),),
        ((b.ROUTING, _routing(0)),),
        ((b.HOP_BY_HOP, _options(1)), (b.ROUTING, _routing(0)), (b.DESTINATION, _options(2))),
    )[variant % 5]


def _extend(*headers: tuple[int, Callable[[int], bytes]]) -> Change:
    def change(draft: Draft, a: int) -> None:
        more = tuple((number, make(a)) for number, make in headers)
        draft.fields["extensions"] = tuple(draft.fields.get("extensions", ())) + more

    return change


def _fragment(a: int) -> bytes:
    offset = (1, a % 8191 << 3, a % 8191 << 3 | 1, 0)[a % 4]  # the last one: an atomic fragment
    return bytes((0, 0)) + offset.to_bytes(2, "big") + BLOB[a & 0xFF :][:4]


def _any_bytes(a: int) -> bytes:
    return bytes((0, 1)) + BLOB[a & 0xFF :][:14]


@fault("v6")
def extension_headers(draft: Draft, a: int) -> None:
    draft.change("extensions", extension(a >> 1), a)


@fault("v6")
def extension_bytes(draft: Draft, a: int) -> None:
    draft.change("extensions", ((b.DESTINATION, _options(1, a % 256)),), a)


@fault("v6")
def eight_extensions(draft: Draft, a: int) -> None:
    draft.change("extensions", ((b.DESTINATION, _options(1)),) * 8, a)


@fault("v6")
def many_extensions(draft: Draft, a: int) -> None:
    draft.fields["extensions"] = ((b.DESTINATION, _options(1)),) * (9 + a % 3)


@fault("v6")
def long_headers(draft: Draft, a: int) -> None:
    draft.change("extensions", ((b.DESTINATION, _options(20 + (a >> 1) % 8)),), a)


@fault("v6")
def extension_beyond(draft: Draft, a: int) -> None:
    header = bytearray(_options(1))
    header[1] = 255 - a % 100
    draft.fields["extensions"] = ((b.EXTENSIONS[a % 3], bytes(header)),)


@fault("v6")
def jumbo(draft: Draft, a: int) -> None:
    length = len(draft.payload) + 28
    option = bytes((0, 0, 0xC2, 4)) + length.to_bytes(4, "big")  # RFC 2675 section 2
    draft.fields.update(extensions=((b.HOP_BY_HOP, option),), payload_length=0)


enter("hop_by_hop", "v6", lambda d, a: d.change("extensions", extension(1), a))
enter("hop_by_hop_late", "v6", _extend((60, lambda a: _options(1)), (0, lambda a: _options(1))))
enter("routing_left", "v6", _extend((43, lambda a: _routing(1 + a % 255))))
enter("fragment_header", "v6", _extend((44, _fragment)))
enter("esp_header", "v6", _extend((50, _any_bytes)))
enter("ah_header", "v6", _extend((51, _any_bytes)))


@fault("v6")
def other_extension(draft: Draft, a: int) -> None:
    numbers = (135, 139, 140, 253, 254)  # IANA "IPv6 Extension Header Types"
    draft.fields["extensions"] = ((numbers[a % 5], _options(1)),)


@fault()
def other_protocol(draft: Draft, a: int) -> None:
    numbers = (4, 41, 47, 132, 50, 51, 255) if draft.family == 4 else (4, 41, 47, 132, 59, 255, 17)
    number = numbers[a % 7]
    draft.fields["protocol"] = TCP if number == draft.protocol else number


@fault()
def icmp(draft: Draft, a: int) -> None:
    draft.fields["protocol"] = 1 if draft.family == 4 else 58


# --- transport headers ---------------------------------------------------------------------------


@fault()
def transport_truncated(draft: Draft, a: int) -> None:
    draft.payload = b""
    keep = draft.network_header() + a % draft.transport_header
    draft.inner.append(lambda data: _resize(data[:keep], draft.family))


def _resize(packet: bytes, family: int) -> bytes:
    """`packet` with the IP length field set to what there is."""
    data = bytearray(packet)
    at, without = (2, 0) if family == 4 else (4, 40)
    data[at : at + 2] = max(len(data) - without, 0).to_bytes(2, "big")
    with contextlib.suppress(IndexError, struct.error):
        return b.fix_checksums(bytes(data))
    return bytes(data)


enter("data_offset_short", "tcp", lambda d, a: d.fields.update(data_offset=a % 5))


@fault("tcp")
def data_offset_long(draft: Draft, a: int) -> None:
    draft.resize(a % 8)
    draft.fields["data_offset"] = 13 + a % 3


def checksum_field(draft: Draft) -> int:
    """What the transport checksum field would hold."""
    data, at = draft.ip_packet(), draft.network_header() + (16 if draft.protocol == TCP else 6)
    return int.from_bytes(data[at : at + 2], "big")


def break_checksum(draft: Draft, a: int) -> None:
    """Another transport checksum than the right one."""
    draft.fields["checksum"] = checksum_field(draft) ^ 1 << a % 16


enter("checksum_bad", "", break_checksum)


@fault()
def checksum_is_zero(draft: Draft, a: int) -> None:
    """A payload whose checksum is 0 (of UDP: 0 that is sent as 0xFFFF)."""
    draft.payload = bytes(2) + draft.payload[2:]
    draft.payload = checksum_field(draft).to_bytes(2, "big") + draft.payload[2:]


@fault("tcp")
def checksum_ffff(draft: Draft, a: int) -> None:
    checksum_is_zero(draft, a)
    draft.fields["checksum"] = 0xFFFF


enter("checksum_none", "", lambda d, a: d.fields.update(checksum=0))


@fault()
def payload_flip(draft: Draft, a: int) -> None:
    def flip(data: bytes) -> bytes:
        return data[:-1] + bytes((data[-1] ^ 1 << a % 8,))

    draft.inner.append(flip)


enter(
    "udp_length_long",
    "udp",
    lambda d, a: d.fields.update(udp_length=min(9 + len(d.payload) + a % 100, 65535)),
)
enter("udp_length_short", "udp", lambda d, a: d.fields.update(udp_length=a % (8 + len(d.payload))))


@fault("udp")
def udp_empty(draft: Draft, a: int) -> None:
    draft.payload = b""


enter("tunnel_port", "udp", lambda d, a: d.change("dport", TUNNEL_PORTS[a % 8], 0))
enter("tunnel_source", "udp", lambda d, a: d.change("sport", TUNNEL_PORTS[a % 8], 0))
enter("port_4500", "udp", lambda d, a: d.change(("dport", "sport")[a % 2], 4500, 0))
