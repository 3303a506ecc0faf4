"""The parser that the model reads packets with: against scapy, and on packets that end anywhere."""

import pytest
import scapy.utils
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6

from tests import builders as b
from tests.dissect import checksum16, parse
from tests.test_traffic import TRANSPORTS, valid_packets
from tests.traffic import LINKS

pytestmark = pytest.mark.engineless


@given(st.binary(max_size=200))
def test_checksum16_is_the_sum_that_scapy_computes(data: bytes) -> None:
    assert 0xFFFF - checksum16(data) == scapy.utils.checksum(data)


def test_fields_are_read_as_scapy_reads_them() -> None:
    for given_packet in valid_packets("ip", 300):
        packet = parse(given_packet.data)
        layers = IP(given_packet.data) if packet.version == 4 else IPv6(given_packet.data)
        transport = layers[TCP] if packet.protocol == b.TCP else layers[UDP]
        assert packet.ports == (transport.sport, transport.dport)
        assert packet.payload == bytes(transport.payload)
        assert packet.canonical_checksum() == transport.chksum
        if packet.protocol == b.TCP:
            assert (packet.seq, packet.ack, packet.window) == (
                transport.seq,
                transport.ack,
                transport.window,
            )
        if packet.version == 4:
            assert (packet.ident, packet.tos, packet.ttl) == (layers.id, layers.tos, layers.ttl)
        else:
            assert (packet.flow_label, packet.tos, packet.ttl) == (
                layers.fl,
                layers.tc,
                layers.hlim,
            )


@pytest.mark.parametrize(("family", "protocol"), TRANSPORTS)
def test_a_packet_that_ends_anywhere_is_no_candidate(family: int, protocol: int) -> None:
    whole = b.BUILDERS[family, protocol](b"payload")
    for link in LINKS:
        if link in ("ipv4", "ipv6") and link != f"ipv{family}":
            continue
        frame = b.FRAMES[link](whole)
        assert parse(frame, link).verdict is None
        for length in range(len(frame)):
            assert parse(frame[:length], link).verdict is not None
