"""What is measured inside stacks and libraries of others, and whether it can be here."""

from benchmarks.embed import pytcp, quic, vpn
from benchmarks.parts import Part, run
from benchmarks.report import RESULTS

__all__ = ["PARTS", "main"]

PARTS = {
    "pytcp": Part(pytcp.measure, pytcp.lacks, 7),
    "quic": Part(quic.measure, quic.lacks, 3),
    "vpn": Part(vpn.measure, vpn.lacks, 7),
}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 when something was measured."""
    return run(
        PARTS,
        arguments,
        name="benchmarks.embed",
        description="Measure receive offload inside stacks and libraries of others.",
        file=RESULTS / "embed.json",
    )
