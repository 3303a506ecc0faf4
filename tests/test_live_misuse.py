"""Live dispatchers in the hands of programs that are mistaken, or do more than they need to."""

import socket
import sys
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.errors import ConfigError, DeviceGoneError, PinnedError
from tests.builders import tcp4
from tests.engines import Engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="live dispatchers need Linux")

STREAM = [tcp4(bytes(100), seq=1 + 100 * number, ident=number) for number in range(9)]
CLASSES = {
    "readv": "ReadvDispatcher",
    "recvmmsg": "RecvMmsgDispatcher",
    "ring": "PacketRingDispatcher",
}


def maker(kind: str, engine: Engine) -> Any:
    """The class of a kind of dispatcher."""
    return getattr(engine.module(f"dispatchers.{kind}"), CLASSES[kind])


@pytest.mark.parametrize(
    ("kind", "wrong", "error", "message"),
    [
        ("readv", "x", TypeError, "^descriptor: .*'str'"),
        ("readv", None, TypeError, "^descriptor: .*'NoneType'"),
        ("readv", 1.5, TypeError, "^descriptor: .*'float'"),
        ("readv", True, ConfigError, "^descriptor: True"),
        ("readv", 2**40, ConfigError, "^descriptor: 1099511627776"),
        ("readv", -1, ConfigError, "^descriptor: -1"),
        ("recvmmsg", 1.5, TypeError, "^source: .*'float'"),
        ("recvmmsg", None, TypeError, "^source: .*'NoneType'"),
        ("recvmmsg", True, TypeError, "^source: .*'bool'"),
        ("recvmmsg", 2**31 - 1, DeviceGoneError, "^2147483647: is no interface"),
        ("recvmmsg", 2**40, DeviceGoneError, "^1099511627776: is no interface"),
        ("ring", 1.5, TypeError, "^interface: .*'float'"),
        ("ring", b"in", TypeError, "^interface: .*'bytes'"),
        ("ring", 2**40, DeviceGoneError, "^1099511627776: is no interface"),
    ],
)
def test_what_can_be_no_device_is_refused_by_name(
    engine: Engine, kind: str, wrong: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        maker(kind, engine)(wrong, print)


@pytest.mark.parametrize("kind", ["readv", "recvmmsg"])
@pytest.mark.parametrize("pending", [False, True])
def test_what_was_read_waits_for_space_also_when_the_program_uses_the_engine_itself(
    engine: Engine, kind: str, pending: bool
) -> None:
    given: list[bytes] = []
    headers: list[memoryview] = []

    def hook(packets: list[Any]) -> None:
        for packet in packets:
            given.extend(bytes(piece) for piece in packet.segments())
            headers.append(packet.header)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    config = GroConfig(capacity=4, max_slabs=1)
    with ours, maker(kind, engine)(theirs, hook, config) as dispatcher:
        dispatcher.gro.dispatch(STREAM[:2])
        headers.clear()
        dispatcher.gro.dispatch(STREAM[2:4])  # whose headers are kept
        for packet in STREAM[4:8]:
            ours.send(packet)
        for _ in range(3):
            with pytest.raises(PinnedError):
                dispatcher.dispatch_once(0)
        headers.clear()
        if pending:
            dispatcher.gro.enqueue(STREAM[8])  # which goes first, and whose header is kept
            with pytest.raises(PinnedError):
                dispatcher.dispatch_once(0)
            headers.clear()
        assert dispatcher.dispatch_once(0) == 4
    expected = [*STREAM[:4], *STREAM[8:9] * pending, *STREAM[4:8]]
    assert given == expected
