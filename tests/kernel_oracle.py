"""The running kernel's own GRO as a witness: packets in, what it delivered out.

    with KernelOracle() as oracle:
        [delivered] = oracle.run([[first, second]])

The packets pass through a TUN device in a network namespace of a child process
(`tests.kernel_worker`); this process stays where it is. TCP over IPv4 and IPv6 merges, and UDP
to `UDP_PORTS`, where the child holds sockets with UDP_GRO. All packets of a sequence share one
hash bucket of the kernel, which holds 8 open super-packets and evicts the oldest for a ninth.
"""

import functools
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from netstack_gro.virtio import VirtioHeader
from tests.requirements import lacks_kernel, lacks_tun

__all__ = ["UDP_PORTS", "KernelOracle", "KernelPacket", "OracleError", "availability"]

UDP_PORTS = (5201, 5202)
"""Destination ports that UDP merges for: no well-known service's and no tunnel's."""

MEASURED = (6, 18)  # earlier kernels have other rules for equal IPv4 IDs and for CWR
START_S = 20.0
STOP_S = 5.0


class OracleError(Exception):
    """The oracle could not be set up, or the kernel did not answer."""


@dataclass(frozen=True, slots=True)
class KernelPacket:
    """One packet as the kernel delivered it, and its virtio_net_hdr."""

    data: bytes
    virtio: VirtioHeader


class KernelOracle:
    """A child process with ``devices`` devices in a network of its own, until closed.

    ``link`` is what packets start with: ``ip`` nothing (TUN), ``ethernet`` 14 bytes and VLAN
    tags (TAP). The kernel takes the outer tag off a frame before it delivers it.
    """

    def __init__(
        self,
        devices: int = 16,
        *,
        link: Literal["ip", "ethernet"] = "ip",
        udp_ports: Sequence[int] = UDP_PORTS,
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            arguments = [link, theirs.fileno(), devices, *udp_ports]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kernel_worker", *map(str, arguments)],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        try:
            problem = self._receive(START_S)
        except BaseException:
            self.close()
            raise
        if problem is not None:
            self.close()
            raise OracleError(f"the kernel oracle cannot be set up: {problem}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self, sequences: Sequence[Sequence[bytes]], timeout: float = 60.0
    ) -> list[list[KernelPacket]]:
        """For each sequence of packets, what the kernel delivered, in order of delivery.

        Each sequence is one GRO round: nothing is held from one to the next. Raises OracleError
        when that takes longer than ``timeout`` seconds, a packet is not IP at all (the TUN
        refuses it), or one is lost; the oracle is closed then.
        """
        try:
            self._connection.send([list(sequence) for sequence in sequences])
            answer = self._receive(timeout)
        except BaseException:
            self.close()
            raise
        if isinstance(answer, str):
            self.close()
            raise OracleError(answer)
        assert isinstance(answer, list)
        return [
            [KernelPacket(data, VirtioHeader.decode(header)) for header, data in delivered]
            for delivered in answer
        ]

    def _receive(self, timeout: float) -> object:
        if not self._connection.poll(timeout):
            raise OracleError(f"the kernel oracle did not answer within {timeout} s")
        try:
            answer: object = self._connection.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait(STOP_S)
            raise OracleError(f"the kernel oracle ended with exit status {code}") from None
        return answer

    def close(self) -> None:
        """End the child, and with it its namespaces and devices. Idempotent."""
        self._connection.close()  # the child leaves when it reads the end
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@functools.cache
def availability() -> str | None:
    """Why the oracle cannot run here, or None. Tried out once in a process."""
    reason = lacks_kernel(*MEASURED) or lacks_tun()
    if reason is not None:
        return reason
    try:
        KernelOracle(devices=1).close()
    except OracleError as error:
        return str(error)
    return None
