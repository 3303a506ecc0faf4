"""Two namespaces, a cable between them, and the example VPN at each end."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import lab

__all__ = ["SECRET", "carried"]

SECRET = bytes(range(32))
MTU = 1400  # less than the cable's 1,500 by IP, UDP and what sealing adds


@contextmanager
def carried(tmp_path: Path, *options: str) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """The lab, the two namespaces and the two processes. ``options``: of the VPN at both ends."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    with lab.Lab() as net:
        ends = [net.namespace(), net.namespace()]
        net.veth(ends[0], "eth0", ends[1], "eth0")
        children = []
        for number, end in enumerate(ends):
            end.address("eth0", f"192.0.2.{number + 1}/24")
            children.append(
                net.start(
                    end,
                    "examples.vpn",
                    *("--tun", "vpn0", "--secret", secret),
                    *("--local", f"192.0.2.{number + 1}:5000"),
                    *("--peer", f"192.0.2.{2 - number}:5000"),
                    *options,
                    stdout=subprocess.PIPE,
                )
            )
        for number, (end, child) in enumerate(zip(ends, children, strict=True)):
            assert child.stdout is not None
            assert child.stdout.readline() == "carrying vpn0\n"
            end.mtu("vpn0", MTU)
            end.up("vpn0")
            end.address("vpn0", f"10.0.0.{number + 1}/24", f"fd00::{number + 1}/64")
        yield net, ends, children
