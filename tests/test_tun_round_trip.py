"""Two kernels with a TUN each, and between them: read whole, cut, merged again, written whole."""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Self

import pytest

from netstack_gro.verdicts import Verdict
from tests import lab, tuns
from tests.engines import Engine
from tests.requirements import lacks_kernel, lacks_tun, require
from tests.tuns import FAR, NEAR, PARTIAL

FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
SENT = os.urandom(512 << 10)


class Merging:
    """A hook that gives the wire packets it gets to an engine with a sink behind it."""

    def __init__(self, engine: Engine, sink: Any) -> None:
        self.limits = engine.Limits(delivered_checksums="complete")
        self.gro = engine.GroDispatcher(sink, PARTIAL)
        self.verdicts: set[Verdict] = set()

    def __call__(self, packets: list[Any]) -> None:
        for packet in packets:
            self.verdicts.add(packet.verdict)
            assert not packet.gso_size
            self.gro.enqueue(bytes(packet), checksum=packet.checksum)
        self.gro.flush()


class Middle:
    """What stands between the namespaces ``near`` and ``far``, and runs until it is left.

    With ``split`` what ``near`` sends is cut, merged again and written whole; without, it goes
    through as it came, like all on the way back.
    """

    def __init__(self, engine: Engine, net: lab.Lab, *, split: bool) -> None:
        self.near, self.far = net.namespace(), net.namespace()
        self._stack = ExitStack()
        near = self._stack.enter_context(tuns.opened(self.near))
        far = self._stack.enter_context(tuns.opened(self.far, versions=[]))
        self.far.address("tun0", f"{FAR[4]}/24", f"{FAR[6]}/64")
        make = engine.module("dispatchers.tun").TunDispatcher
        writer = engine.module("hooks.tun").TunWriter
        self.writer = writer(far)
        self.merging = Merging(engine, self.writer)
        hook = self.merging if split else self.writer
        for device, behind, options in (
            (near, hook, {"split": split}),
            (far, writer(near), {}),
        ):
            dispatcher = self._stack.enter_context(make(device, behind, PARTIAL, **options))
            running = lab.Background(dispatcher.run)
            self._stack.callback(running.finish)
            self._stack.callback(dispatcher.stop)

    def end(self) -> Any:
        """Stop and close all; the statistics of what was written to ``far``."""
        self._stack.close()
        return self.writer.stats

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


@pytest.fixture(params=[False, True], ids=["whole", "split"])
def middle(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Middle]:
    require(lacks_tun() or lacks_kernel(6, 2))
    with lab.Lab() as net, Middle(engine, net, split=request.param) as made:
        yield made


@pytest.mark.parametrize("version", [4, 6])
def test_a_tcp_stream_arrives_as_it_was_sent(middle: Middle, version: int) -> None:
    def receive(listener: socket.socket) -> bytes:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            return hashlib.sha256(stream.read()).digest()

    with middle.far, socket.create_server((FAR[version], 0), family=FAMILIES[version]) as listener:
        listener.settimeout(tuns.PATIENCE_S)
        receiving = lab.Background(receive, listener)
        with middle.near:
            connection = socket.create_connection(listener.getsockname()[:2], tuns.PATIENCE_S)
        with connection:
            connection.sendall(SENT)
        assert receiving.result() == hashlib.sha256(SENT).digest()
    assert middle.far.counters()["TcpInCsumErrors"] == 0
    stats = middle.end()
    assert stats.super_packets > 0
    assert stats.cut == stats.refused == 0
    assert Verdict.MERGED not in middle.merging.verdicts


@pytest.mark.parametrize("version", [4, 6])
def test_trains_of_datagrams_arrive_with_their_boundaries(middle: Middle, version: int) -> None:
    with (
        middle.near.socket(FAMILIES[version], socket.SOCK_DGRAM) as sender,
        middle.far.socket(FAMILIES[version], socket.SOCK_DGRAM) as receiver,
    ):
        sender.bind((NEAR[version], 0))
        receiver.bind((FAR[version], 9000))
        receiver.settimeout(tuns.PATIENCE_S)
        for size, count, last in ((1200, 10, 1200), (100, 60, 7), (1, 2, 1), (1400, 46, 1)):
            payload = os.urandom(size * (count - 1) + last)
            tuns.send_train(sender, FAR[version], payload, size)
            received = [receiver.recv(2000) for _ in range(count)]
            assert [len(datagram) for datagram in received] == [size] * (count - 1) + [last]
            assert b"".join(received) == payload
    assert middle.end().super_packets == 4
    counters = middle.far.counters()
    assert counters["UdpInCsumErrors"] == counters["Udp6InCsumErrors"] == 0
