"""The published lists of verdicts and reasons, and that every one of them can be reached."""

from typing import Any

import pytest

from netstack_gro.config import GroConfig, Limits
from netstack_gro.verdicts import CloseReason, Verdict
from tests import builders as b
from tests.builders import ethernet, tcp4, tcp6, udp4
from tests.engines import Engine
from tests.flushes import Recorder, RecordingSink, batch_of, merged

# In order of precedence; numbers and names are part of the interface.
VERDICTS = [
    "ALONE",
    "DISABLED",
    "LINK_TRUNCATED",
    "NOT_IP",
    "VLAN_DEPTH",
    "IP_VERSION",
    "IP_TRUNCATED",
    "IP_HEADER_LENGTH",
    "IP_LENGTH_ZERO",
    "TRUNCATED",
    "TRAILING_BYTES",
    "IP_OPTIONS",
    "FRAGMENT",
    "IP_RESERVED_BIT",
    "IP_CHECKSUM",
    "EXTENSION_HEADER",
    "OTHER_PROTOCOL",
    "TRANSPORT_TRUNCATED",
    "HEADERS_TOO_LONG",
    "TCP_DATA_OFFSET",
    "TCP_SYN",
    "TCP_RST",
    "TCP_URG",
    "TCP_CWR",
    "TCP_NO_PAYLOAD",
    "UDP_LENGTH",
    "UDP_EMPTY",
    "UDP_NO_CHECKSUM",
    "UDP_PORT",
    "ALREADY_AGGREGATED",
    "BAD_VNET_HEADER",
    "PROTOCOL_OFF",
    "TOO_LARGE",
    "NEVER_MERGE",
    "BAD_CHECKSUM",
    "MERGED",
    "OPENED",
]
REASONS = [
    "NOT_HELD",
    "BATCH_END",
    "BARRIER",
    "PASSED",
    "SHORT",
    "PSH",
    "FIN",
    "LINK_HEADER",
    "TOS",
    "TTL",
    "DF",
    "FLOW_LABEL",
    "EXTENSION_HEADERS",
    "ACK",
    "WINDOW",
    "URGENT_POINTER",
    "TCP_FLAGS",
    "TCP_OPTIONS",
    "SEQUENCE",
    "IP_ID",
    "CHECKSUM_STATE",
    "LARGER",
    "SIZE",
    "COUNT",
    "BAD_CHECKSUM",
]


def test_the_published_verdicts_keep_their_order_and_values() -> None:
    assert [(verdict.name, verdict.value) for verdict in Verdict] == [
        (name, value) for value, name in enumerate(VERDICTS)
    ]


def test_the_published_reasons_keep_their_order_and_values() -> None:
    assert [(reason.name, reason.value) for reason in CloseReason] == [
        (name, value) for value, name in enumerate(REASONS)
    ]


def pair(**second: object) -> list[bytes]:
    """A segment and its continuation with some fields changed."""
    changed: dict[str, object] = {"seq": 101, "ident": 1} | second
    return [tcp4(bytes(100), seq=1, ident=0), tcp4(bytes(100), **changed)]


BAD = 0x1234
PADDING = bytes((0, 0, 1, 4, 0, 0, 0, 0))  # RFC 8200 section 4.2: PadN


def pair6(**second: object) -> list[bytes]:
    extensions = [(b.DESTINATION, PADDING)]
    changed: dict[str, object] = {"seq": 101, "extensions": extensions} | second
    return [
        tcp6(bytes(100), seq=1, extensions=extensions),
        tcp6(bytes(100), **changed),
    ]


CLOSING: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "BATCH_END": (pair(sport=7), {}),
    "BARRIER": (pair(mf=True), {}),
    "PASSED": (pair(flags=b.SYN), {}),
    "SHORT": ([tcp4(bytes(100), ident=0), tcp4(bytes(50), seq=101, ident=1)], {}),
    "PSH": (pair(flags=b.ACK | b.PSH), {}),
    "FIN": (pair(flags=b.ACK | b.FIN), {}),
    "LINK_HEADER": (
        [
            ethernet(packet, tags=[(b.DOT1Q, priority << 13 | 5)])
            for priority, packet in enumerate(pair())
        ],
        {"link": "ethernet"},
    ),
    "TOS": (pair(tos=1), {}),
    "TTL": (pair(ttl=63), {}),
    "DF": (pair(df=False), {}),
    "FLOW_LABEL": (pair6(flow_label=1), {}),
    "EXTENSION_HEADERS": (pair6(extensions=[(b.DESTINATION, PADDING[:-1] + b"\1")]), {}),
    "ACK": (pair(ack=2), {}),
    "WINDOW": (pair(window=513), {}),
    "URGENT_POINTER": (pair(urgent=1), {}),
    "TCP_FLAGS": (pair(flags=b.ACK | b.ECE), {}),
    "TCP_OPTIONS": (pair(tcp_options=bytes((1, 1, 1, 1))), {}),
    "SEQUENCE": (pair(seq=102), {}),
    "IP_ID": (pair(ident=2), {}),
    "LARGER": ([tcp4(bytes(100), ident=0), tcp4(bytes(101), seq=101, ident=1)], {}),
    "SIZE": (pair(), {"max_size": 239}),
    "COUNT": (pair(), {"max_tcp_segments": 1}),
    "BAD_CHECKSUM": (pair(checksum=BAD), {}),
}


@pytest.mark.parametrize("reason", CLOSING)
def test_each_reason_is_given_for_its_own_difference(engine: Engine, reason: str) -> None:
    packets, how = CLOSING[reason]
    given = merged(engine, packets, **how)
    assert given.reasons[0] == reason
    assert given.counts[0] == (2 if reason in {"SHORT", "PSH", "FIN"} else 1)


def test_a_change_of_checksum_state_is_a_reason(engine: Engine) -> None:
    first, second = pair()
    batch = engine.Batch()
    batch.append(first, checksum=engine.ChecksumState.VERIFIED)
    batch.append(second)
    hook = Recorder()
    engine.GroDispatcher(hook).dispatch(batch)
    assert hook.reasons == ["CHECKSUM_STATE", "BATCH_END"]


def test_every_reason_has_a_case() -> None:
    assert {*CLOSING, "NOT_HELD", "CHECKSUM_STATE"} == set(REASONS)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tos": 1, "ttl": 63, "seq": 5, "ident": 9}, "TOS"),
        ({"ttl": 63, "df": False, "window": 1}, "TTL"),
        ({"df": False, "ack": 5}, "DF"),
        ({"ack": 5, "window": 1, "urgent": 1}, "ACK"),
        ({"window": 1, "urgent": 1, "flags": b.ACK | b.ECE}, "WINDOW"),
        ({"urgent": 1, "flags": b.ACK | b.AE}, "URGENT_POINTER"),
        ({"flags": b.ACK | b.ECE, "tcp_options": bytes(4), "seq": 0}, "TCP_FLAGS"),
        ({"tcp_options": bytes(4), "seq": 0, "ident": 7}, "TCP_OPTIONS"),
        ({"seq": 0, "ident": 7, "checksum": BAD}, "SEQUENCE"),
        ({"ident": 7, "checksum": BAD}, "IP_ID"),
    ],
)
def test_the_first_reason_that_applies_is_the_reason(
    engine: Engine, fields: dict[str, object], reason: str
) -> None:
    assert merged(engine, pair(**fields)).reasons[0] == reason


def test_a_head_that_was_passed_behind_keeps_its_first_reason(engine: Engine) -> None:
    packets = [
        tcp4(bytes(100), ident=0),
        tcp4(bytes(50), seq=101, ident=1),  # short: closes
        tcp4(bytes(100), seq=151, ident=2, mf=True),  # a barrier
        tcp4(seq=151, flags=b.RST),
    ]
    assert merged(engine, packets).reasons == ["SHORT", "NOT_HELD", "NOT_HELD"]


def test_switching_off_and_refusing_are_verdicts(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook, GroConfig(max_size=200))
    gro.never_merge = lambda flow: flow.source_port == 7
    packets = [tcp4(bytes(9), sport=7), tcp4(bytes(300), sport=7), tcp4(bytes(9))]
    gro.dispatch(batch_of(engine, packets))
    gro.enabled = False
    gro.dispatch(batch_of(engine, pair()))
    assert hook.verdicts == ["NEVER_MERGE", "TOO_LARGE", "OPENED", "DISABLED", "DISABLED"]


def test_a_protocol_is_off_by_configuration_or_by_the_sink(engine: Engine) -> None:
    datagrams = [udp4(bytes(9)), udp4(bytes(9), ident=1)]
    assert merged(engine, datagrams).verdicts == ["PROTOCOL_OFF"] * 2
    assert merged(engine, pair(), tcp=False).verdicts == ["PROTOCOL_OFF"] * 2
    sink = RecordingSink(Limits(tcp=False, udp=True))
    merged(engine, [*pair(), *datagrams], sink, udp=True)
    assert sink.verdicts == ["PROTOCOL_OFF", "PROTOCOL_OFF", "MERGED"]
