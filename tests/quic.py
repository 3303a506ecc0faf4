"""A download over aioquic, with its own endpoints and with ours: a server, and one client's run.

python -m tests.quic ENDPOINT ADDRESS MTU      serves on port 4433 until it is killed
"""

import asyncio
import datetime as dt
import hashlib
import sys
import time
from dataclasses import dataclass
from typing import Any

from tests import namespaces

__all__ = ["PORT", "STOCK", "TRAINS", "Download", "download", "serve", "size_of"]

PORT = 4433
STOCK, TRAINS = "aioquic", "netstack-gro"
BLOCK = bytes(range(256)) * 256
HEADERS = {4: 28, 6: 48}  # IP and UDP
CREDIT = 1 << 24  # bytes that the server may send ahead of the client's reading


def size_of(mtu: int, address: str) -> int:
    """The largest datagram that fits, which aioquic is told."""
    return mtu - HEADERS[6 if ":" in address else 4]


@dataclass(frozen=True, slots=True)
class Download:
    """seconds: by the clock. cpu: of the client's process. digest: SHA-256 of what came.

    trains, datagrams, bad: what the client's endpoint counted; 0 with aioquic's own.
    """

    size: int
    digest: bytes
    seconds: float
    cpu: float
    trains: int = 0
    datagrams: int = 0
    bad: int = 0


def _module(endpoint: str) -> Any:
    if endpoint == STOCK:
        import aioquic.asyncio as module
    else:
        import netstack_gro.adapters.aioquic as module
    return module


async def serve(endpoint: str, address: str, mtu: int) -> Any:
    """A server that sends each client as many bytes as it asks for, in decimal."""
    from aioquic.quic.configuration import QuicConfiguration

    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=["test"], max_datagram_size=size_of(mtu, address)
    )
    configuration.certificate, configuration.private_key = _certificate()
    tasks = set()

    async def answer(reader: Any, writer: Any) -> None:
        size = int(await reader.read())
        while size:
            part = BLOCK[:size]
            writer.write(part)
            await writer.drain()
            size -= len(part)
        writer.write_eof()

    def opened(reader: Any, writer: Any) -> None:
        task = asyncio.ensure_future(answer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return await _module(endpoint).serve(
        address, PORT, configuration=configuration, stream_handler=opened
    )


async def download(endpoint: str, address: str, mtu: int, size: int) -> Download:
    """Fetch ``size`` bytes over one stream of one connection."""
    import ssl

    from aioquic.quic.configuration import QuicConfiguration

    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=["test"],
        max_datagram_size=size_of(mtu, address),
        verify_mode=ssl.CERT_NONE,
        max_data=CREDIT,
        max_stream_data=CREDIT,
    )
    async with _module(endpoint).connect(address, PORT, configuration=configuration) as protocol:
        reader, writer = await protocol.create_stream()
        writer.write(str(size).encode())
        writer.write_eof()
        count, digest = 0, hashlib.sha256()
        cpu, began = time.process_time(), time.perf_counter()
        while data := await reader.read(1 << 20):
            count += len(data)
            digest.update(data)
        taken, cpu = time.perf_counter() - began, time.process_time() - cpu
        dispatcher = protocol._transport.get_extra_info("dispatcher")
        found = Download(count, digest.digest(), taken, cpu)
        if dispatcher is None:
            return found
        stats = dispatcher.stats
        return Download(
            count,
            digest.digest(),
            taken,
            cpu,
            stats.trains,
            stats.datagrams,
            stats.truncated + stats.control_truncated + stats.malformed,
        )


def _certificate() -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    builder = builder.public_key(key.public_key()).not_valid_before(now - day)
    return builder.not_valid_after(now + day).sign(key, hashes.SHA256()), key


async def _run(endpoint: str, address: str, mtu: int) -> None:
    await serve(endpoint, address, mtu)
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    namespaces.die_with_parent()
    asyncio.run(_run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
