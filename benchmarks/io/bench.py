"""What is measured of a running kernel, and whether it can be here."""

from benchmarks.io import datagrams, sizes, timer, tunnel
from benchmarks.parts import Part, run
from benchmarks.report import RESULTS
from tests.requirements import lacks_root, lacks_tun

__all__ = ["PARTS", "main"]

PARTS = {
    "udp": Part(datagrams.measure, lacks_root, 31),
    "mtu": Part(sizes.measure, lacks_root, 101),
    "tun": Part(tunnel.measure, lacks_tun, 15),
    "timer": Part(timer.measure, lacks_root, 15),
}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 when something was measured."""
    return run(
        PARTS,
        arguments,
        name="benchmarks.io",
        description="Measure receiving from and writing to a running kernel.",
        file=RESULTS / "io.json",
    )
