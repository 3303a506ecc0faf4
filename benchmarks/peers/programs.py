"""Building the peers, and talking to them. Nothing is installed here."""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.building import HEADERS, Missing, compiler, python_headers, run
from benchmarks.process import LineProcess

__all__ = ["Answer", "PeerError", "Program", "build", "version"]

HERE = Path(__file__).resolve().parent
DPDK_LIBRARIES = ("gro", "net", "mbuf", "mempool", "mempool_ring", "eal")
GO_MODULES = {
    "gvisor": "gvisor.dev/gvisor",
    "wireguard": "golang.zx2c4.com/wireguard",
}


class PeerError(Exception):
    """A peer ended, or answered with something else than a measurement."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One measurement: nanoseconds a packet, packets that came out, TCP payload in them."""

    ns: float
    out: int
    payload: int

    @classmethod
    def parse(cls, line: str) -> "Answer":
        """The answer in a line of JSON; ValueError where it is none."""
        try:
            found = json.loads(line)
            answer = cls(float(found["ns"]), int(found["out"]), int(found["payload"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no answer: {line!r}") from error
        if not 0 < answer.ns < float("inf"):
            raise ValueError(f"no time: {line!r}")
        return answer


class Program(LineProcess):
    """A peer that is running and answers one request at a time."""

    def ask(self, path: Path, mode: str, seconds: float) -> Answer:
        """Measure one mode on the batch in a file; PeerError where that failed."""
        try:
            return Answer.parse(self.exchange(f"{path}\t{mode}\t{seconds}"))
        except (OSError, ValueError) as error:
            raise PeerError(f"{self.name} did not measure {mode!r} on {path}: {error}") from error


def build(peer: str, folder: Path) -> list[str]:
    """Build a peer into ``folder``; the command that runs it. Missing where it cannot be had.

    Peers are ``ours``, ``dpdk``, ``dpdk-native``, ``gvisor``, ``wireguard`` and ``dpkt``.
    """
    if peer == "ours":
        return [sys.executable, "-m", "benchmarks.peers.ours"]
    if peer == "dpkt":
        if importlib.util.find_spec("dpkt") is None:
            raise Missing("no dpkt: pip install dpkt")
        return [sys.executable, "-m", "benchmarks.peers.dpkt_gro"]
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if peer in GO_MODULES:
        return [str(_build_go(peer, folder))]
    return [str(_build_dpdk(folder, native=peer == "dpdk-native"))]


def version(peer: str) -> str:
    """What was built: the version of the peer's package."""
    if peer in GO_MODULES:
        required = (HERE / peer / "go.mod").read_text()
        found = re.search(rf"^\s*{re.escape(GO_MODULES[peer])} (\S+)", required, re.MULTILINE)
        assert found is not None
        return found[1]
    if peer == "dpkt":
        return importlib.metadata.version("dpkt")
    return run(["pkg-config", "--modversion", "libdpdk"]).strip()


def _build_dpdk(folder: Path, *, native: bool) -> Path:
    cc = compiler()
    if shutil.which("pkg-config") is None:
        raise Missing("no pkg-config: apt install pkg-config libdpdk-dev")
    try:
        flags = run(["pkg-config", "--cflags", "libdpdk"]).split()
        places = run(["pkg-config", "--libs-only-L", "libdpdk"]).split()
    except Missing:
        raise Missing("no DPDK: apt install libdpdk-dev") from None
    includes = python_headers()
    program = folder / ("dpdk_gro_native" if native else "dpdk_gro")
    command = [cc, "-O3", *flags, "-DALLOW_EXPERIMENTAL_API"]
    if native:
        command.append("-march=native")  # after the flags, which name the oldest CPU there is
    command += [f"-I{HEADERS}", f"-I{includes}", str(HERE / "dpdk_gro.c"), "-o", str(program)]
    command += [*places, *(f"-lrte_{name}" for name in DPDK_LIBRARIES)]
    run(command)
    return program


def _build_go(peer: str, folder: Path) -> Path:
    if shutil.which("go") is None:
        wanted = re.search(r"^go (\S+)", (HERE / peer / "go.mod").read_text(), re.MULTILINE)
        assert wanted is not None
        raise Missing(f"no Go: install Go {wanted[1]} or later")
    program = folder / peer
    # Modules are fetched here, in the versions of go.mod and with the sums of go.sum.
    run(["go", "build", "-o", str(program), "."], HERE / peer)
    return program
