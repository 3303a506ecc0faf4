"""The way from the frames of a TPACKET_V3 block to packets, with blocks made by hand."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack_gro import ChecksumState, GroConfig, VirtioHeader
from tests import builders
from tests.engines import ENGINES, Engine, load

BLOCK = struct.Struct("=IIIIIIQ16x")  # struct tpacket_block_desc
HEADER = struct.Struct("=6I2H2IHH8x")  # struct tpacket3_hdr
ADDRESS = 20  # struct sockaddr_ll
USER, LOSING, CSUM_NOT_READY, VLAN, TIMED_OUT, TPID, CSUM_VALID = (1, 4, 8, 16, 32, 64, 128)

INTERFACE, MTU, VNET_SIZE = 7, 1500, 10
PLAIN = VirtioHeader()


@dataclass(frozen=True)
class Frame:
    """A frame as the kernel writes it into a block; what is None follows from the rest."""

    data: bytes
    wire_length: int | None = None
    seconds: int = 1
    nanoseconds: int = 2
    status: int = USER
    tci: int = 0
    tpid: int = 0
    virtio: VirtioHeader | None = PLAIN
    snapped: int | None = None
    mac: int | None = None
    following: int | None = None

    def encode(self, *, last: bool) -> bytes:
        vnet = b"" if self.virtio is None else self.virtio.encode()
        mac = HEADER.size + ADDRESS + 4 + len(vnet)
        size = -(-(mac + len(self.data)) // 16) * 16
        header = HEADER.pack(
            self.following if self.following is not None else 0 if last else size,
            self.seconds,
            self.nanoseconds,
            len(self.data) if self.snapped is None else self.snapped,
            len(self.data) if self.wire_length is None else self.wire_length,
            self.status,
            mac if self.mac is None else self.mac,
            mac + 14,
            0,
            self.tci,
            self.tpid,
            0,
        )
        return (header + bytes(ADDRESS + 4) + vnet + self.data).ljust(size, b"\xee")


def block(
    frames: Sequence[Frame],
    *,
    size: int = 65536,
    count: int | None = None,
    first: int = BLOCK.size,
    length: int | None = None,
) -> bytearray:
    body = b"".join(
        frame.encode(last=number == len(frames) - 1) for number, frame in enumerate(frames)
    )
    number = len(frames) if count is None else count
    used = BLOCK.size + len(body) if length is None else length
    head = BLOCK.pack(1, BLOCK.size, USER | TIMED_OUT, number, first, used, 9)
    return bytearray((head + body).ljust(size, b"\xdd"))


def read(
    engine: Engine,
    memory: bytearray,
    *,
    capacity: int = 64,
    vnet_size: int = VNET_SIZE,
) -> tuple[list[list[dict[str, Any]]], Any]:
    """What each batch of a block has, and the reader afterwards."""
    batches: list[list[dict[str, Any]]] = []

    def hook(packets: list[Any]) -> None:
        batches[-1].extend(
            {
                "data": bytes(packet),
                "wire_length": packet.wire_length,
                "timestamp_ns": packet.timestamp_ns,
                "interface": packet.interface,
                "vlan": packet.vlan,
                "vlan_tpid": packet.vlan_tpid,
                "checksum": packet.checksum,
                "gso": (packet.gso_type, packet.gso_size),
            }
            for packet in packets
        )

    reader = engine.module("dispatchers.blocks").BlockReader(INTERFACE, MTU, vnet_size)
    batch = engine.Batch(memory, capacity=capacity)
    settings = GroConfig(link="ethernet", capacity=capacity, delivered_checksums="partial")
    with engine.GroDispatcher(hook, settings) as gro:
        gro.enabled = False  # every packet for itself
        reader.open(batch)
        while reader.left:
            batches.append([])
            assert reader.fill(batch) == len(batch)
            gro.dispatch(batch)
            batch.clear()
    return batches, reader


def one(engine: Engine, frame: Frame, **options: Any) -> dict[str, Any]:
    batches, _reader = read(engine, block([frame]), **options)
    ((packet,),) = batches
    return packet


DATA = builders.ethernet(builders.udp4(b"payload"))


def test_frames_come_in_order_with_the_time_and_the_interface_of_each(engine: Engine) -> None:
    frames = [
        Frame(
            builders.ethernet(builders.udp4(bytes(number))),
            seconds=1_700_000_000 + number,
            nanoseconds=999_999_999 - number,
        )
        for number in range(20)
    ]
    batches, reader = read(engine, block(frames))
    (packets,) = batches
    assert [packet["data"] for packet in packets] == [frame.data for frame in frames]
    assert [packet["timestamp_ns"] for packet in packets] == [
        frame.seconds * 10**9 + frame.nanoseconds for frame in frames
    ]
    assert {packet["interface"] for packet in packets} == {INTERFACE}
    assert (reader.truncated, reader.damaged) == (0, 0)


def test_a_block_of_more_frames_than_the_capacity_becomes_several_batches(engine: Engine) -> None:
    frames = [Frame(builders.ethernet(builders.udp4(bytes(n)))) for n in range(20)]
    batches, _reader = read(engine, block(frames), capacity=8)
    assert [len(batch) for batch in batches] == [8, 8, 4]
    assert [packet["data"] for batch in batches for packet in batch] == [f.data for f in frames]


def test_the_time_is_right_beyond_2038(engine: Engine) -> None:
    frame = Frame(DATA, seconds=2**32 - 1, nanoseconds=999_999_999)
    assert one(engine, frame)["timestamp_ns"] == 2**32 * 10**9 - 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (VLAN | TPID, (0x6ABC, 0x88A8)),
        (VLAN, (0x6ABC, 0x8100)),  # before Linux 3.14 there was no TPID
        (TPID, (None, 0)),
        (0, (None, 0)),
    ],
)
def test_a_tag_that_was_taken_out_comes_beside_the_packet(
    engine: Engine, status: int, expected: tuple[int | None, int]
) -> None:
    packet = one(engine, Frame(DATA, status=USER | status, tci=0x6ABC, tpid=0x88A8))
    assert (packet["vlan"], packet["vlan_tpid"]) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (0, ChecksumState.UNKNOWN),
        (CSUM_VALID, ChecksumState.VERIFIED),
        (CSUM_NOT_READY, ChecksumState.PARTIAL),
    ],
)
def test_the_checksum_state_is_that_of_the_frame_header(
    engine: Engine, status: int, expected: ChecksumState
) -> None:
    frame = Frame(
        builders.ethernet(builders.udp4(b"payload", partial=status == CSUM_NOT_READY)),
        status=USER | status,
        virtio=None,
    )
    assert one(engine, frame, vnet_size=0)["checksum"] == expected


def test_a_vnet_header_says_what_super_packet_and_checksum_a_frame_has(engine: Engine) -> None:
    data = builders.ethernet(builders.tcp4(bytes(3000), partial=True))
    virtio = VirtioHeader(
        flags=1, gso_type=1, hdr_len=54, gso_size=1000, csum_start=34, csum_offset=16
    )
    packet = one(engine, Frame(data, virtio=virtio))
    assert packet["data"] == data
    assert packet["gso"] == (1, 1000)
    assert packet["checksum"] == ChecksumState.PARTIAL


def test_a_frame_that_was_cut_off_has_its_length_on_the_wire_and_is_counted(
    engine: Engine,
) -> None:
    batches, reader = read(engine, block([Frame(DATA[:40], wire_length=len(DATA)), Frame(DATA)]))
    first, second = batches[0]
    assert (first["data"], first["wire_length"]) == (DATA[:40], len(DATA))
    assert (second["data"], second["wire_length"]) == (DATA, len(DATA))
    assert reader.truncated == 1


def test_without_a_vnet_header_what_exceeds_the_mtu_is_a_super_packet(engine: Engine) -> None:
    whole = builders.ethernet(builders.tcp4(bytes(MTU - 40)))
    more = builders.ethernet(builders.tcp4(bytes(MTU - 39)))
    for data, expected in ((whole, (0, 0)), (more, (1, 0))):
        frames = [Frame(data, virtio=None)] * 2
        batches, _reader = read(engine, block(frames), vnet_size=0)
        assert [packet["gso"] for packet in batches[0]] == [expected] * 2


def test_a_block_without_frames_has_nothing(engine: Engine) -> None:
    assert read(engine, block([]))[0] == []


@pytest.mark.parametrize(
    "broken",
    [
        {"first": 8},
        {"first": 2**32 - 1},
        {"first": 65536},
        {"length": 100},
        {"count": 2**32 - 1},
    ],
)
def test_a_block_that_does_not_hold_together_is_given_up(
    engine: Engine, broken: dict[str, int]
) -> None:
    batches, reader = read(engine, block([Frame(DATA)] * 3, **broken))
    good = 3 if "count" in broken else 0
    assert sum(map(len, batches)) == good
    assert reader.damaged == broken.get("count", 3) - good
    assert reader.left == 0


@pytest.mark.parametrize(
    ("broken", "good"),
    [
        ({"following": 0}, 2),
        ({"following": 47}, 2),
        ({"following": 65536}, 2),
        ({"following": 2**32 - 1}, 2),
        ({"mac": HEADER.size}, 1),  # where is its vnet header?
        ({"mac": 65535}, 1),
        ({"snapped": 65536}, 1),
        ({"snapped": 2**32 - 1}, 1),
    ],
)
def test_a_frame_that_leaves_its_block_ends_it(
    engine: Engine, broken: dict[str, int], good: int
) -> None:
    frames = [Frame(DATA), replace(Frame(DATA), **broken), Frame(DATA)]
    batches, reader = read(engine, block(frames))
    assert [packet["data"] for batch in batches for packet in batch] == [DATA] * good
    assert reader.damaged == 3 - good


def test_a_slab_that_cannot_be_a_block_is_refused(engine: Engine) -> None:
    reader = engine.module("dispatchers.blocks").BlockReader(INTERFACE, MTU, VNET_SIZE)
    for batch in (engine.Batch(), engine.Batch(bytearray(47))):
        with pytest.raises(ValueError, match="no slab"):
            reader.open(batch)


def test_a_block_is_ready_when_the_kernel_says_so_until_it_is_given_back(engine: Engine) -> None:
    module = engine.module("dispatchers.blocks")
    memory = bytearray(b"\xff" * 48)
    header = memoryview(memory)
    for status in (USER, USER | LOSING | TIMED_OUT):
        struct.pack_into("=I", memory, 8, status)
        assert module.is_ready(header)
        module.give_back(header)
        assert not module.is_ready(header)
    assert bytes(memory) == b"\xff" * 8 + bytes(4) + b"\xff" * 36


WHOLE = block([Frame(builders.udp4(bytes(number))) for number in range(4)], size=1024)
WORDS = st.one_of(
    st.integers(0, 1100),
    st.sampled_from([2**16, 2**16 - 1, 47 << 16, 2**31 - 1, 2**31, 2**32 - 48, 2**32 - 1]),
)


@given(
    changes=st.lists(st.tuples(st.integers(2, len(WHOLE) // 4 - 1), WORDS), max_size=8),
    length=st.integers(48, len(WHOLE)),
    capacity=st.integers(1, 5),
    vnet_size=st.sampled_from([0, VNET_SIZE]),
)
def test_whatever_a_block_holds_nothing_outside_it_is_read(
    changes: list[tuple[int, int]], length: int, capacity: int, vnet_size: int
) -> None:
    memory = bytearray(WHOLE)
    for position, word in changes:
        struct.pack_into("=I", memory, 4 * position, word)
    del memory[length:]  # the interpreted engine raises for every read beyond the end
    announced = struct.unpack_from("=I", memory, 12)[0]
    results = []
    for name in ENGINES:
        batches, reader = read(
            load(name), bytearray(memory), capacity=capacity, vnet_size=vnet_size
        )
        assert sum(map(len, batches)) + reader.damaged == announced
        results.append((batches, reader.truncated, reader.damaged))
    assert results[0] == results[-1]
