"""How an endpoint ends, and what it makes of errors: one suite over asyncio's and ours."""

import asyncio
import errno
import socket
from typing import Any

import pytest

from tests.endpoints import CREATORS, Create, Recorder, run


@pytest.fixture(params=CREATORS, ids=list(CREATORS))
def create(request: pytest.FixtureRequest) -> Create:
    return CREATORS[request.param]


def test_an_error_of_what_was_sent_before_closing_is_told(create: Create) -> None:
    async def main() -> None:
        server, _ = await create(Recorder, local_addr=("127.0.0.1", 0))
        client, said = await create(Recorder, remote_addr=server.get_extra_info("sockname"))
        client.sendto(bytes(65508))
        client.close()
        await said.until(lambda: ("lost", None) in said.told)
        assert said.told == [("made",), ("error", OSError, errno.EMSGSIZE), ("lost", None)]
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_what_connection_made_raises_is_reported_and_keeps_nobody_waiting(create: Create) -> None:
    class Raising(Recorder):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            raise RuntimeError("of the protocol")

    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: reported.append(said))
        async with asyncio.timeout(10):
            transport, heard = await create(Raising, local_addr=("127.0.0.1", 0))
        assert [str(said["exception"]) for said in reported] == ["of the protocol"]
        transport.sendto(b"to itself", transport.get_extra_info("sockname"))
        await heard.until(lambda: bool(heard.got))
        transport.close()
        await heard.until(lambda: ("lost", None) in heard.told)

    run(main)


def test_closing_with_datagrams_unread_is_silent(
    create: Create, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server, heard = await create(Recorder, local_addr=("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            for _ in range(20):
                other.sendto(b"x", server.get_extra_info("sockname"))
            server.close()
        await heard.until(lambda: ("lost", None) in heard.told)
        await asyncio.sleep(0)
        assert heard.got == []

    run(main)
    assert caplog.messages == []


@pytest.mark.parametrize("end", ["close", "abort"])
def test_what_was_sent_before_the_end_arrives(create: Create, end: str) -> None:
    async def main() -> None:
        server, heard = await create(Recorder, local_addr=("127.0.0.1", 0))
        client, said = await create(Recorder, remote_addr=server.get_extra_info("sockname"))
        client.sendto(b"last")
        getattr(client, end)()
        await heard.until(lambda: bool(heard.got))
        await said.until(lambda: ("lost", None) in said.told)
        assert (heard.got, said.told) == ([b"last"], [("made",), ("lost", None)])
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_what_is_sent_to_an_address_after_closing_in_the_same_turn_arrives(create: Create) -> None:
    async def main() -> None:
        server, heard = await create(Recorder, local_addr=("127.0.0.1", 0))
        client, said = await create(Recorder, local_addr=("127.0.0.1", 0))
        client.close()
        client.sendto(b"after", server.get_extra_info("sockname"))
        await heard.until(lambda: bool(heard.got))
        await said.until(lambda: ("lost", None) in said.told)
        assert said.told == [("made",), ("lost", None)]
        server.close()
        await asyncio.sleep(0)

    run(main)


def test_an_interface_that_there_is_none_of_is_told_and_the_others_go(create: Create) -> None:
    async def main() -> None:
        transport, heard = await create(Recorder, local_addr=("::1", 0))
        transport.sendto(b"nowhere", ("fe80::1%none", 9, 0, 0))
        transport.sendto(b"to itself", transport.get_extra_info("sockname"))
        await heard.until(lambda: bool(heard.got))
        transport.close()
        await heard.until(lambda: ("lost", None) in heard.told)
        assert [told[0] for told in heard.told] == ["made", "error", "lost"]

    run(main)


def test_what_is_no_address_ends_the_transport(create: Create) -> None:
    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: reported.append(said))
        transport, heard = await create(Recorder, local_addr=("127.0.0.1", 0))
        transport.sendto(b"x", ["127.0.0.1", 9])
        await heard.until(lambda: len(heard.told) > 1)
        assert [type(lost) for _, lost in heard.told[1:]] == [TypeError]
        assert [said["message"] for said in reported] == ["Fatal write error on datagram transport"]
        assert transport.is_closing()

    run(main)


def test_what_a_protocol_sends_on_an_error_keeps_the_order_of_sending(create: Create) -> None:
    class Answering(Recorder):
        def error_received(self, exc: Exception) -> None:
            super().error_received(exc)
            for n in range(2):  # more than is collected before it is sent
                send(b"on error %d" % n + bytes(40_000))

    async def main() -> None:
        server, heard = await create(Recorder, local_addr=("127.0.0.1", 0))
        client, said = await create(Answering, local_addr=("127.0.0.1", 0))
        there = server.get_extra_info("sockname")
        senders.append(lambda data: client.sendto(data, there))
        send(b"before")
        client.sendto(bytes(65508), ("127.0.0.1", 9))
        send(b"behind")
        await heard.until(lambda: len(heard.got) == 4)
        assert heard.got == sent
        assert [told[0] for told in said.told] == ["made", "error"]
        client.close()
        server.close()
        await asyncio.sleep(0)

    def send(data: bytes) -> None:
        sent.append(data)
        senders[0](data)

    sent: list[bytes] = []
    senders: list[Any] = []
    run(main)
