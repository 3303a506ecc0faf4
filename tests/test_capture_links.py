"""Link types: those that are read, and how others are refused."""

import io
from typing import get_args

import pytest

from netstack_gro.capture import LINK_NAMES, link_name, open_capture
from netstack_gro.config import GroConfig, Link
from netstack_gro.errors import CaptureError, UnsupportedLinkTypeError
from tests.capture_files import (
    enhanced,
    interface,
    obsolete,
    pcap_header,
    pcap_record,
    read_until_error,
    reader_of,
    records_of,
    section,
    simple,
)

SUPPORTED = {
    0: "null",
    1: "ethernet",
    12: "ip",
    14: "ip",
    101: "ip",
    108: "loop",
    113: "sll",
    228: "ipv4",
    229: "ipv6",
    276: "sll2",
}


@pytest.mark.parametrize(("number", "name"), SUPPORTED.items())
def test_every_supported_link_type_has_a_name_that_the_engine_takes(number: int, name: str) -> None:
    assert link_name(number) == name
    assert GroConfig(link=link_name(number)).link == name


def test_the_table_is_complete_and_cannot_be_changed() -> None:
    assert dict(LINK_NAMES) == SUPPORTED
    assert set(LINK_NAMES.values()) == set(get_args(Link))
    with pytest.raises(TypeError):
        LINK_NAMES[127] = "ip"  # type: ignore[index]


@pytest.mark.parametrize("number", SUPPORTED)
def test_both_formats_are_read_with_every_supported_link_type(number: int) -> None:
    for content in (
        pcap_header(link=number) + pcap_record(b"packet"),
        section() + interface(number) + enhanced(b"packet"),
    ):
        reader = reader_of(content)
        assert [record.data for record in reader] == [b"packet"]
        assert [described.link_type for described in reader.interfaces] == [number]


def test_an_unknown_link_type_is_refused_with_its_number() -> None:
    with pytest.raises(
        UnsupportedLinkTypeError, match=r"^here: byte 7: link type 4242 is not"
    ) as e:
        link_name(4242, "here", 7)
    assert (e.value.name, e.value.offset, e.value.link_type) == ("here", 7, 4242)
    assert isinstance(e.value, CaptureError)


def test_a_well_known_link_type_is_refused_with_its_name() -> None:
    with pytest.raises(UnsupportedLinkTypeError, match=r"127 \(LINKTYPE_IEEE802_11_RADIOTAP\)"):
        link_name(127)


def test_a_pcap_file_of_another_link_type_is_refused_when_it_is_opened() -> None:
    stream = io.BytesIO(pcap_header(link=105))
    stream.name = "wifi.pcap"
    with pytest.raises(UnsupportedLinkTypeError, match=r"^wifi\.pcap: byte 20: .*105.*IEEE802_11"):
        open_capture(stream)


@pytest.mark.parametrize("packet", [enhanced(b"x"), obsolete(b"x"), simple(b"x")])
def test_a_pcapng_interface_of_another_link_type_is_refused_with_its_first_packet(
    packet: bytes,
) -> None:
    start = section() + interface(1) + enhanced(b"before") + section() + interface(105)
    records, error = read_until_error(reader_of(start + packet))
    assert [record.data for record in records] == [b"before"]
    assert isinstance(error, UnsupportedLinkTypeError)
    assert (error.link_type, error.offset) == (105, len(start))


def test_a_pcapng_interface_of_another_link_type_without_packets_does_no_harm() -> None:
    content = section() + interface(105) + interface(1) + enhanced(b"x", interface=1)
    assert [record.interface for record in records_of(content)] == [1]
