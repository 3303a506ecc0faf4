"""The codec of struct virtio_net_hdr, against struct and against bytes as a kernel writes them."""

import dataclasses
import struct
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack_gro.errors import GroError, VirtioHeaderError
from netstack_gro.virtio import DATA_VALID, GSO_ECN, NEEDS_CSUM, GsoType, VirtioHeader

FIELDS = {
    "flags": 8,
    "gso_type": 8,
    "hdr_len": 16,
    "gso_size": 16,
    "csum_start": 16,
    "csum_offset": 16,
    "num_buffers": 16,
}
ORDERS: dict[Any, str] = {"little": "<", "big": ">", "native": "="}
HEADERS = st.builds(
    VirtioHeader, **{name: st.integers(0, (1 << bits) - 1) for name, bits in FIELDS.items()}
)


@given(HEADERS)
def test_both_sizes_are_what_struct_packs_in_every_byte_order(header: VirtioHeader) -> None:
    values = dataclasses.astuple(header)
    for order, mark in ORDERS.items():
        assert header.encode(10, order) == struct.pack(f"{mark}BBHHHH", *values[:6])
        assert header.encode(12, order) == struct.pack(f"{mark}BBHHHHH", *values[:7])
    assert header.encode() == header.encode(10, "native")
    assert header.encode(12) == header.encode(12, sys.byteorder)


@given(HEADERS, st.binary(max_size=4), st.sampled_from((bytes, bytearray, memoryview)))
def test_decoding_gives_back_what_was_encoded(
    header: VirtioHeader, rest: bytes, kind: type[Any]
) -> None:
    for order in ORDERS:
        assert VirtioHeader.decode(kind(header.encode(12, order) + rest), 12, order) == header
        short = VirtioHeader.decode(kind(header.encode(10, order) + rest), 10, order)
        assert short == dataclasses.replace(header, num_buffers=0)


def test_a_header_as_a_tun_of_a_little_endian_host_writes_it_is_understood() -> None:
    # UDP datagram of 10 bytes with CHECKSUM_PARTIAL, then a TCPv4 super-packet.
    assert VirtioHeader.decode(bytes.fromhex("01000000000014000600"), 10, "little") == VirtioHeader(
        NEEDS_CSUM, 0, 0, 0, 20, 6
    )
    assert VirtioHeader.decode(bytes.fromhex("01013400a80514001000"), 10, "little") == VirtioHeader(
        NEEDS_CSUM, GsoType.TCPV4, 52, 1448, 20, 16
    )


@pytest.mark.parametrize("size", [10, 12])
def test_fewer_bytes_than_the_header_has_are_refused(size: int) -> None:
    for length in range(size):
        with pytest.raises(VirtioHeaderError, match=f"{size}-byte"):
            VirtioHeader.decode(bytes(length), size)


@pytest.mark.parametrize("wrong", [None, "0123456789", 10, [0] * 10])
def test_what_holds_no_bytes_is_refused(wrong: Any) -> None:
    with pytest.raises(VirtioHeaderError):
        VirtioHeader.decode(wrong)


@pytest.mark.parametrize("size", [0, 9, 11, 13, 20, -10])
def test_another_size_is_refused(size: int) -> None:
    with pytest.raises(VirtioHeaderError, match=str(size)):
        VirtioHeader().encode(size)
    with pytest.raises(VirtioHeaderError, match=str(size)):
        VirtioHeader.decode(bytes(20), size)


@pytest.mark.parametrize("order", ["", "Little", "network", None])
def test_another_byte_order_is_refused(order: Any) -> None:
    with pytest.raises(VirtioHeaderError, match="byte order"):
        VirtioHeader().encode(10, order)
    with pytest.raises(VirtioHeaderError, match="byte order"):
        VirtioHeader.decode(bytes(20), 10, order)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_out_of_range_is_named(name: str) -> None:
    highest = (1 << FIELDS[name]) - 1
    assert getattr(VirtioHeader(**{name: highest}), name) == highest
    values: list[Any] = [-1, highest + 1, True, 1.0, None, "1"]
    for wrong in values:
        with pytest.raises(VirtioHeaderError, match=f"{name}: ") as caught:
            VirtioHeader(**{name: wrong})
        assert repr(wrong) in str(caught.value)


def test_flags_are_read_bit_by_bit() -> None:
    assert VirtioHeader(NEEDS_CSUM).needs_csum
    assert not VirtioHeader(NEEDS_CSUM).data_valid
    assert VirtioHeader(DATA_VALID).data_valid
    assert not VirtioHeader(DATA_VALID).needs_csum
    assert not VirtioHeader(0xFC).needs_csum
    assert not VirtioHeader(0xFC).data_valid


def test_a_header_is_a_value() -> None:
    header = VirtioHeader(1, 2, 3, 4, 5, 6, 7)
    assert header == VirtioHeader(1, 2, 3, 4, 5, 6, 7)
    assert len({header, VirtioHeader(1, 2, 3, 4, 5, 6, 7), VirtioHeader()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        header.flags = 0  # type: ignore[misc]


def test_the_numbers_are_those_of_the_kernel_header() -> None:
    # include/uapi/linux/virtio_net.h
    assert {kind.name: kind.value for kind in GsoType} == {
        "NONE": 0,
        "TCPV4": 1,
        "UFO": 3,
        "TCPV6": 4,
        "UDP_L4": 5,
    }
    assert (NEEDS_CSUM, DATA_VALID, GSO_ECN) == (1, 2, 0x80)


def test_an_error_is_a_value_error_and_one_of_ours() -> None:
    assert issubclass(VirtioHeaderError, ValueError)
    assert issubclass(VirtioHeaderError, GroError)
