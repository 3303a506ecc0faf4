"""Memory that callers can reach behind the interface's back: nothing is read or written outside it.

Each case once crashed the compiled engine, or showed memory that was not a packet's.
"""

import sys
import threading
import time
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.errors import EngineStateError, GsoError
from netstack_gro.virtio import VirtioHeader
from tests.builders import tcp4
from tests.engines import Engine

SEGMENTS = [tcp4(bytes([65 + n]) * 100, seq=1 + 100 * n, ident=n) for n in range(3)]


@pytest.mark.parametrize("size", [0, 10, 10**6])
@pytest.mark.parametrize("packets", [SEGMENTS, SEGMENTS[:1]], ids=["merged", "lone"])
def test_a_detached_packet_whose_memory_is_resized_stays_within_it(
    engine: Engine, packets: list[bytes], size: int
) -> None:
    kept: list[Any] = []
    engine.GroDispatcher(lambda out: kept.append(out[0].detach())).dispatch(packets)
    memory = kept[0].header.obj
    del memory[size:]
    memory.extend(bytes(size - len(memory)))
    assert bytes(kept[0]) == bytes(memory)
    assert len(kept[0]) == size
    target = bytearray(size + 8)
    assert kept[0].copy_into(target, 4) == size
    assert target == bytes(4) + memory + bytes(4)


def test_header_space_that_was_resized_while_set_aside_is_not_used_again(engine: Engine) -> None:
    views: list[Any] = []
    keep = True

    def hook(packets: list[Any]) -> None:
        if keep:
            views.append(packets[0].header)
        else:
            assert list(packets[0].segments()) == SEGMENTS

    gro = engine.GroDispatcher(hook, GroConfig(capacity=4))
    for _ in range(3):
        gro.dispatch(SEGMENTS)
    keep = False
    spaces = [view.obj for view in views]
    for view in views:
        view.release()
    for space in spaces[:-1]:
        space.clear()
    views.clear()
    for _ in range(8):
        gro.dispatch(SEGMENTS)


def test_a_copy_whose_offset_outlives_the_hook_is_refused(engine: Engine) -> None:
    asked, returned = threading.Event(), threading.Event()
    outcomes: list[Any] = []

    class Late:
        def __index__(self) -> int:
            asked.set()
            returned.wait(10)
            return 0

    def copy(packet: Any) -> None:
        try:
            outcomes.append(packet.copy_into(bytearray(1000), Late()))
        except ValueError as error:
            outcomes.append(str(error))

    threads: list[threading.Thread] = []

    def hook(packets: list[Any]) -> None:
        threads.append(threading.Thread(target=copy, args=(packets[0],)))
        threads[0].start()
        assert asked.wait(10)

    engine.GroDispatcher(hook).dispatch(SEGMENTS)
    returned.set()
    threads[0].join(10)
    assert len(outcomes) == 1
    assert "released" in str(outcomes[0])


def test_a_buffer_that_is_given_back_cannot_enter_its_batch(engine: Engine) -> None:
    outcomes: list[Any] = []
    delivered: list[bytes] = []
    gro = engine.GroDispatcher(lambda packets: delivered.extend(map(bytes, packets)))
    batch = engine.Batch(capacity=4)

    class Meddler(bytearray):
        def __del__(self) -> None:
            for act in (lambda: gro.dispatch(batch), batch.clear, lambda: batch.append(b"late")):
                try:
                    act()
                    outcomes.append(None)
                except EngineStateError as error:
                    outcomes.append(error)

    batch.append(SEGMENTS[0])
    batch.append(Meddler(SEGMENTS[1]))
    batch.append(SEGMENTS[2])
    batch.clear()
    assert [type(outcome) for outcome in outcomes] == [EngineStateError] * 3
    assert delivered == []
    assert len(batch) == 0
    batch.append(SEGMENTS[0])
    assert gro.dispatch(batch) == 1
    assert delivered == [SEGMENTS[0]]


def test_a_link_header_that_looks_like_another_does_not_mislead_the_inverse(
    engine: Engine,
) -> None:
    """An SLL header that is also a null header with a 32-byte IPv4 header behind it."""
    link_header = bytes.fromhex("0000000248000000010200000906" + "0800")
    look_alike = [link_header + segment for segment in SEGMENTS]
    seen: list[Any] = []

    def hook(packets: list[Any]) -> None:
        packet = packets[0]
        seen.append(packet.packets)
        header = packet.virtio_header()
        seen.append(list(engine.segment(bytes(packet), header, packet.ip_id_mode)))
        with pytest.raises(GsoError, match="several link layers"):
            engine.segment(bytes(packet), VirtioHeader.decode(header.encode()))

    engine.GroDispatcher(hook, GroConfig(link="sll")).dispatch(look_alike)
    assert seen == [3, look_alike]


def test_attributes_of_a_kept_packet_can_be_read_while_it_is_released(engine: Engine) -> None:
    kept: list[Any] = []
    stop = threading.Event()
    faults: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            for packet in kept[-40:]:
                try:
                    packet.virtio_header()
                    assert packet.packets == len(packet.timestamps())
                except Exception as error:
                    faults.append(error)

    if engine.name == "interpreted":
        pytest.skip("between two interpreted steps another thread may always come in")
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=read)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        gro = engine.GroDispatcher(kept.extend)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            gro.dispatch([*SEGMENTS, *(tcp4(b"x", sport=n + 2) for n in range(20))])
            del kept[:-200]
    finally:
        stop.set()
        thread.join(10)
        sys.setswitchinterval(interval)
    assert faults == []
