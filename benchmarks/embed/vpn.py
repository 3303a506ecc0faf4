"""The example VPN: with super-packets and trains in both directions, and with neither."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.io.results import Results, WrongResultError
from tests import transfer
from tests.requirements import lacks_tun
from tests.vpn_net import MTU, carried

__all__ = ["lacks", "measure"]

SIZE, QUICK_SIZE = 64 << 20, 4 << 20
ENGINES = {"one by one": ["--plain"], "super-packets and trains": []}
PLAIN, MERGED = ENGINES
WALL = "ns/byte, wall"
LEAST = 2.0

SETUP = (
    "The example VPN between two namespaces over a veth of MTU 1,500, a process at each end; a TUN "
    f"of MTU {MTU:,} in each. A kernel's TCP sends {SIZE >> 20} MiB through it, held to its "
    "SHA-256; sender and receiver are processes of their own, and all share two processors. "
    "Each datagram is sealed and opened by ChaCha20-Poly1305 of cryptography (OpenSSL). "
    "'One by one': the TUN takes and gives no super-packets, nothing is merged, and there are no "
    "trains (recvmmsg and sendmmsg all the same)."
)


def lacks() -> str | None:
    """Why this cannot be measured here."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return "cryptography is not installed"
    return lacks_tun()


def measure(rounds: int, *, quick: bool) -> Results:
    """Transfers in either direction, by the two in turn."""
    results = Results([SETUP])
    size = QUICK_SIZE if quick else SIZE
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nets = {
            name: stack.enter_context(carried(folder, *options))
            for name, options in ENGINES.items()
        }
        for _ in range(rounds):
            for name, (net, ends, _children) in nets.items():
                for way, address in enumerate(("10.0.0.2", "10.0.0.1")):
                    done = transfer.run(net, ends[way], ends[1 - way], address, size, seed=way)
                    if done.digest_received != done.digest_sent or done.received != size:
                        raise WrongResultError(f"{done.received} of {size} bytes arrived whole")
                    case = ("there", "back")[way]
                    results.add(case, name, WALL, done.seconds / size * 1e9, size)
        for name, (_net, ends, _children) in nets.items():
            for way, case in enumerate(("there", "back")):
                counters = ends[1 - way].counters()
                results.count(case, name, checksum_errors=counters["TcpInCsumErrors"])
    for case in ("there", "back"):
        results.times(case, MERGED, PLAIN, WALL, LEAST)
    return results
