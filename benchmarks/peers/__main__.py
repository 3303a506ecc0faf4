"""Engines of others, measured in turn with ours on the same packets in one run.

    python -m benchmarks.peers [--quick] [--only PEER] [--json PATH]

Peers are DPDK's librte_gro, gVisor's stack/gro, wireguard-go's TUN writer and dpkt. They are built
into build/peers; one that cannot be had is left out, and a line says what to install. Printed are
nanoseconds a packet, the ratios that the engine is held to, and what each engine checks and
copies; the figures are also written to build/bench/peers.json.
"""

import sys

from .bench import main

if __name__ == "__main__":
    sys.exit(main())
