"""Building wireguard-go's TUN writer into a program that can be asked to write."""

import re
import shutil
from pathlib import Path

from benchmarks.building import Missing, run

__all__ = ["build"]

SOURCE = Path(__file__).resolve().parent / "tun_writer"


def build(folder: Path) -> list[str]:
    """Build it into ``folder``; the command that runs it. Missing where it cannot be had."""
    if shutil.which("go") is None:
        wanted = re.search(r"^go (\S+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
        assert wanted is not None
        raise Missing(f"no Go: install Go {wanted[1]} or later")
    program = folder.resolve() / "tun_writer"
    program.parent.mkdir(parents=True, exist_ok=True)
    # Modules are fetched here, in the versions of go.mod and with the sums of go.sum.
    run(["go", "build", "-o", str(program), "."], SOURCE)
    return [str(program)]
