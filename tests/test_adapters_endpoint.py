"""An endpoint in place of asyncio's: one suite over both, and what only ours does."""

import asyncio
import errno
import gc
import socket
from typing import Any

import pytest

from netstack_gro.adapters.endpoint import TrainTransport, create_datagram_endpoint
from tests.endpoints import CREATORS, Create, Recorder, run


@pytest.fixture(params=CREATORS, ids=list(CREATORS))
def create(request: pytest.FixtureRequest) -> Create:
    return CREATORS[request.param]


LOCAL = [("127.0.0.1", 0), ("::1", 0)]


@pytest.mark.parametrize("local", LOCAL, ids=["IPv4", "IPv6"])
def test_datagrams_arrive_with_the_address_of_their_sender(create: Create, local: Any) -> None:
    async def main() -> None:
        server, heard = await create(Recorder, local_addr=local)
        client, said = await create(Recorder, remote_addr=server.get_extra_info("sockname")[:2])
        sent = [bytes([n]) * (1 + n % 40) for n in range(200)]
        for data in sent:
            client.sendto(data)
        await heard.until(lambda: len(heard.got) == len(sent))
        assert heard.got == sent
        assert set(heard.addresses) == {client.get_extra_info("sockname")}
        server.sendto(b"answer", heard.addresses[0])
        await said.until(lambda: bool(said.got))
        assert said.got == [b"answer"]
        assert said.addresses == [client.get_extra_info("peername")]
        for transport in (client, server):
            transport.close()
        await heard.until(lambda: ("lost", None) in heard.told)
        assert heard.told == [("made",), ("lost", None)]

    run(main)


def test_what_is_asked_of_a_transport_is_answered(create: Create) -> None:
    async def main() -> None:
        transport, protocol = await create(Recorder, local_addr=("127.0.0.1", 0))
        assert transport.get_protocol() is protocol
        assert transport.get_extra_info("peername") is None
        assert transport.get_extra_info("no such thing", 5) == 5
        assert transport.get_extra_info("socket").getsockname() == transport.get_extra_info(
            "sockname"
        )
        assert transport.get_write_buffer_size() == 0
        assert transport.get_write_buffer_limits() == (16384, 65536)
        transport.set_write_buffer_limits(high=100)
        assert transport.get_write_buffer_limits() == (25, 100)
        with pytest.raises(ValueError, match="must be >="):
            transport.set_write_buffer_limits(high=1, low=2)
        assert not transport.is_closing()
        transport.close()
        assert transport.is_closing()
        transport.close()
        await protocol.until(lambda: ("lost", None) in protocol.told)
        transport.abort()  # of no effect

    run(main)


def test_another_protocol_gets_what_comes_after_it_was_set(create: Create) -> None:
    async def main() -> None:
        server, first = await create(Recorder, local_addr=("127.0.0.1", 0))
        client, _ = await create(Recorder, remote_addr=server.get_extra_info("sockname")[:2])
        client.sendto(b"one")
        await first.until(lambda: bool(first.got))
        second = Recorder()
        server.set_protocol(second)
        client.sendto(b"two")
        await second.until(lambda: bool(second.got))
        assert (first.got, second.got) == ([b"one"], [b"two"])
        server.close()
        client.close()
        await second.until(lambda: ("lost", None) in second.told)

    run(main)


def test_a_connected_endpoint_sends_to_its_peer_only(create: Create) -> None:
    async def main() -> None:
        server, heard = await create(Recorder, local_addr=("127.0.0.1", 0))
        peer = server.get_extra_info("sockname")
        client, _ = await create(Recorder, remote_addr=peer)
        client.sendto(b"named", peer)
        with pytest.raises(ValueError, match="Invalid address"):
            client.sendto(b"x", ("127.0.0.1", 9))
        with pytest.raises(TypeError, match="bytes-like"):
            client.sendto("text")
        client.sendto(bytearray(b"array"))
        client.sendto(memoryview(b"view"))
        await heard.until(lambda: len(heard.got) == 3)
        assert heard.got == [b"named", b"array", b"view"]
        client.close()
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_a_refusal_is_told_and_the_endpoint_goes_on(create: Create) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", 0))
            peer = other.getsockname()
        client, said = await create(Recorder, remote_addr=peer)
        client.sendto(b"to nobody")
        await said.until(lambda: len(said.told) > 1)
        assert said.told[1] == ("error", ConnectionRefusedError, errno.ECONNREFUSED)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(peer)
            other.setblocking(False)
            loop = asyncio.get_running_loop()
            client.sendto(b"again")
            async with asyncio.timeout(10):
                assert await loop.sock_recv(other, 100) == b"again"
        client.close()
        await said.until(lambda: ("lost", None) in said.told)

    run(main)


def test_a_refusal_that_sending_finds_is_told_and_the_datagram_is_sent(create: Create) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", 0))
            peer = other.getsockname()
        client, said = await create(Recorder, remote_addr=peer)
        loop = asyncio.get_running_loop()
        watched = client.get_extra_info("dispatcher") or client.get_extra_info("socket")
        loop._selector.unregister(watched.fileno())  # type: ignore[attr-defined]
        client.sendto(b"to nobody")
        await asyncio.sleep(0)
        client.sendto(b"again")
        await said.until(lambda: len(said.told) > 1)
        assert said.told[1] == ("error", ConnectionRefusedError, errno.ECONNREFUSED)
        client.abort()
        await said.until(lambda: ("lost", None) in said.told)

    run(main)


def test_a_datagram_that_is_too_long_is_told_and_the_others_go(create: Create) -> None:
    async def main() -> None:
        server, heard = await create(Recorder, local_addr=("127.0.0.1", 0))
        client, said = await create(Recorder, remote_addr=server.get_extra_info("sockname")[:2])
        client.sendto(b"before")
        client.sendto(bytes(65508))
        client.sendto(b"after")
        await heard.until(lambda: len(heard.got) == 2)
        assert heard.got == [b"before", b"after"]
        await said.until(lambda: len(said.told) > 1)
        assert said.told[1:] == [("error", OSError, errno.EMSGSIZE)]
        client.close()
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_what_a_protocol_raises_is_reported_and_the_next_datagram_comes(create: Create) -> None:
    class Raising(Recorder):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            if data == b"1":
                raise RuntimeError("of the protocol")

    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: reported.append(said))
        server, heard = await create(Raising, local_addr=("127.0.0.1", 0))
        client, _ = await create(Recorder, remote_addr=server.get_extra_info("sockname")[:2])
        for n in range(3):
            client.sendto(b"%d" % n)
        await heard.until(lambda: len(heard.got) == 3)
        assert heard.got == [b"0", b"1", b"2"]
        assert [str(said["exception"]) for said in reported] == ["of the protocol"]
        client.close()
        server.close()
        await asyncio.sleep(0)

    run(main)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_nothing_comes_after_a_protocol_has_closed_its_transport(create: Create, end: str) -> None:
    class Closing(Recorder):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            super().datagram_received(data, addr)
            getattr(self.transport, end)()

    async def main() -> None:
        server, heard = await create(Closing, local_addr=("127.0.0.1", 0))
        client, _ = await create(Recorder, remote_addr=server.get_extra_info("sockname")[:2])
        for _ in range(5):
            client.sendto(b"x")
        await heard.until(lambda: ("lost", None) in heard.told)
        assert heard.got == [b"x"]
        client.close()
        await asyncio.sleep(0)

    run(main)


def test_a_given_socket_is_the_transports(create: Create) -> None:
    async def main() -> None:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind(("127.0.0.1", 0))
        transport, protocol = await create(Recorder, sock=opened)
        assert transport.get_extra_info("sockname") == opened.getsockname()
        transport.close()
        await protocol.until(lambda: ("lost", None) in protocol.told)
        await asyncio.sleep(0)
        assert opened.fileno() == -1

    run(main)


def test_arguments_that_do_not_go_together_are_refused(create: Create) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream:
            with pytest.raises(ValueError, match=r"(?i)socket was expected"):
                await create(Recorder, sock=stream)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
            with pytest.raises(ValueError):
                await create(Recorder, local_addr=("127.0.0.1", 0), sock=opened)
        with pytest.raises(ValueError):
            await create(Recorder)
        with pytest.raises(ValueError, match="address information"):
            await create(Recorder, local_addr=("127.0.0.1", 0), remote_addr=("::1", 9))
        with pytest.raises(OSError):
            await create(Recorder, local_addr=("192.0.2.77", 0))

    run(main)


def test_a_protocol_factory_that_raises_leaves_nothing_open() -> None:
    def factory() -> Any:
        raise RuntimeError("no protocol")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="no protocol"):
            await create_datagram_endpoint(factory, local_addr=("127.0.0.1", 0))
        gc.collect()

    run(main)


def test_an_unclosed_transport_warns() -> None:
    async def main() -> None:
        transport, _ = await create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0))
        reading = transport.get_extra_info("dispatcher").fileno()
        asyncio.get_running_loop().remove_reader(reading)
        with pytest.warns(ResourceWarning, match="unclosed"):
            transport.__del__()

    run(main)


# --- ours alone ----------------------------------------------------------------------------------


def test_what_is_sent_in_a_turn_goes_as_trains_and_comes_as_such() -> None:
    class Batched(Recorder):
        def datagrams_received(self, datagrams: list[bytes], addr: Any) -> None:
            self.told.append(("train", len(datagrams), self.transport.get_extra_info("ecn")))
            self.got += datagrams
            self.event.set()

    async def main() -> None:
        server, heard = await create_datagram_endpoint(
            Batched, local_addr=("127.0.0.1", 0), ecn=True
        )
        client, _ = await create_datagram_endpoint(
            Recorder, remote_addr=server.get_extra_info("sockname")
        )
        client.get_extra_info("socket").setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
        sent = [bytes([n]) * 1000 for n in range(30)] + [b"tail"]
        for data in sent:
            client.sendto(data)
        assert client.get_write_buffer_size() == 30_004
        await heard.until(lambda: len(heard.got) == len(sent))
        assert heard.got == sent
        assert heard.told[1:] == [("train", 31, 2)]
        assert server.get_extra_info("ecn") is None
        assert server.get_extra_info("dispatcher").stats.trains == 1
        client.close()
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_more_than_a_train_does_not_wait_for_the_end_of_the_turn() -> None:
    async def main() -> None:
        server, heard = await create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0))
        client, said = await create_datagram_endpoint(
            Recorder, remote_addr=server.get_extra_info("sockname")
        )
        for _ in range(500):
            client.sendto(bytes(1000))
            assert client.get_write_buffer_size() < 65536
        await heard.until(lambda: len(heard.got) == 500)
        assert said.told == [("made",)]
        client.close()
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_where_there_is_no_room_a_protocol_pauses_and_nothing_is_lost() -> None:
    """A datagram pair's queue is full: the kernel says EAGAIN, as a UDP socket with netem would."""

    class Sender:
        """A sender of trains whose kernel has room for three datagrams at a time."""

        def __init__(self, real: Any) -> None:
            self.real = real
            self.full = True
            self.left: list[bytes] = []

        def send(self, datagrams: list[bytes], address: Any) -> int:
            from netstack_gro.errors import DeviceError

            if self.full:
                self.left = list(datagrams)
                raise DeviceError("socket", errno.EAGAIN, "no room")
            return int(self.real.send(datagrams, address))

        def take_back(self) -> list[tuple[bytes, None]]:
            left, self.left = self.left, []
            return [(datagram, None) for datagram in left]

        def take_refusal(self) -> int:
            return 0

        def close(self) -> None:
            self.real.close()

    async def main() -> None:
        server, heard = await create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0))
        client, said = await create_datagram_endpoint(
            Recorder, remote_addr=server.get_extra_info("sockname")
        )
        sender = client._sender = Sender(client._sender)
        sent = [bytes([n]) * 1000 for n in range(100)]
        for data in sent:
            client.sendto(data)
        await asyncio.sleep(0)
        assert said.told == [("made",), ("pause",)]
        assert client.get_write_buffer_size() == 100_000
        client.close()  # which waits for what is to be sent
        sender.full = False
        await heard.until(lambda: len(heard.got) == 100)
        await said.until(lambda: ("lost", None) in said.told)
        assert heard.got == sent
        assert said.told == [("made",), ("pause",), ("resume",), ("lost", None)]
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_a_name_in_place_of_a_number_is_looked_up(create: Create) -> None:
    async def main() -> None:
        server, heard = await create(Recorder, local_addr=("127.0.0.1", 0))
        client, _ = await create(Recorder, local_addr=("127.0.0.1", 0))
        client.sendto(b"by name", ("localhost", server.get_extra_info("sockname")[1]))
        await heard.until(lambda: bool(heard.got))
        assert heard.got == [b"by name"]
        client.close()
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_what_is_no_udp_socket_gets_asyncios_own_transport() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        transport, protocol = await create_datagram_endpoint(Recorder, sock=ours)
        assert not isinstance(transport, TrainTransport)
        theirs.send(b"x")
        await protocol.until(lambda: bool(protocol.got))
        transport.close()
        theirs.close()
        await protocol.until(lambda: ("lost", None) in protocol.told)

    run(main)
