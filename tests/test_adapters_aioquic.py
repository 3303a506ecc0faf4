"""aioquic over our endpoints: what is downloaded is whole, and trains are handed on as such."""

import asyncio
import hashlib
import subprocess
from typing import Any

import pytest

from netstack_gro.adapters.endpoint import TrainTransport
from tests import lab, quic
from tests.requirements import lacks_root, require

pytestmark = pytest.mark.engineless  # what it is about is the same at either speed

SIZE = 1 << 20
DIGEST = hashlib.sha256(quic.BLOCK * (SIZE // len(quic.BLOCK))).digest()
ADDRESSES = {"IPv4": ("192.0.2.1", "192.0.2.2"), "IPv6": ("fd00::1", "fd00::2")}


@pytest.mark.parametrize("mtu", [1280, 1499, 1500])
@pytest.mark.parametrize("family", ADDRESSES)
@pytest.mark.parametrize("server", [quic.TRAINS, quic.STOCK])
def test_a_download_is_whole_and_comes_in_trains(family: str, mtu: int, server: str) -> None:
    require(lacks_root())
    near, far = ADDRESSES[family]
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "eth0", there, "eth0", mtu=mtu)
        for end, address in ((here, near), (there, far)):
            end.address("eth0", f"{address}/{64 if ':' in address else 24}")
        child = net.start(there, "tests.quic", server, far, mtu, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == "serving\n"
        with here:
            done = asyncio.run(quic.download(quic.TRAINS, far, mtu, SIZE))
    assert (done.size, done.digest, done.bad) == (SIZE, DIGEST, 0)
    if server == quic.TRAINS:
        assert done.datagrams > 2 * done.trains


def test_several_connections_share_a_server_and_each_gets_its_own() -> None:
    require(lacks_root())

    async def run() -> list[Any]:
        server = await quic.serve(quic.TRAINS, "127.0.0.1", 1500)
        assert isinstance(server._transport, TrainTransport)
        sizes = [10_000, 100_000, 300_000, 0, 1]
        got = await asyncio.gather(
            *(quic.download(quic.TRAINS, "127.0.0.1", 1500, size) for size in sizes)
        )
        server.close()
        await asyncio.sleep(0)
        assert [each.size for each in got] == sizes
        return got

    with lab.Lab() as net, net.namespace():
        for each in asyncio.run(run()):
            whole = (quic.BLOCK * (each.size // len(quic.BLOCK) + 1))[: each.size]
            assert each.digest == hashlib.sha256(whole).digest()


def test_a_server_hands_on_runs_of_datagrams_in_order_and_the_rest_one_by_one() -> None:
    from aioquic.quic.configuration import QuicConfiguration

    from netstack_gro.adapters.aioquic import BatchedServer

    class Connection:
        def __init__(self) -> None:
            self.got: list[list[bytes]] = []

        def datagrams_received(self, datagrams: list[bytes], address: Any) -> None:
            assert address == "peer"
            self.got.append(list(datagrams))

    class Single:
        def __init__(self) -> None:
            self.got: list[bytes] = []

        def datagram_received(self, data: bytes, address: Any) -> None:
            self.got.append(data)

    async def run() -> None:
        server = BatchedServer(configuration=QuicConfiguration(is_client=False))
        one, two, single = Connection(), Connection(), Single()
        server._protocols = {b"1" * 8: one, b"2" * 8: two, b"3" * 8: single}  # type: ignore[dict-item]
        of = {
            name: [b"\x40" + name * 8 + bytes([n]) * 20 for n in range(3)]
            for name in (b"1", b"2", b"3")
        }
        ones = of[b"1"]
        train = [*ones[:2], b"", b"\x40short", of[b"2"][0], of[b"3"][0], ones[2]]
        server.datagrams_received(train, "peer")
        assert one.got == [of[b"1"][:2], of[b"1"][2:]]
        assert two.got == [of[b"2"][:1]]
        assert single.got == of[b"3"][:1]

    asyncio.run(run())
