"""Carry packets between two TUN devices, merged on the way.

    python examples/forward.py [--wire] LEFT RIGHT

Each direction has a dispatcher, an engine and a thread of its own; Ctrl-C ends both and says what
was merged. To see it at work, as root, with the right device moved to another network:

    python examples/forward.py --wire left right &
    ip netns add other
    ip link set right netns other
    ip address add 192.0.2.1/24 dev left
    ip link set left up
    ip -n other address add 192.0.2.2/24 dev right
    ip -n other link set right up
    ip netns exec other iperf3 --server --daemon
    iperf3 --client 192.0.2.2

A kernel gives a TUN its own super-packets, which the engine passes on as they are. With --wire it
has to cut them first, as for a device that takes none, and the engine has something to merge.
"""

import argparse
import signal
import sys
import threading
from contextlib import ExitStack

from netstack_gro import GroConfig, GroError
from netstack_gro.dispatchers import TunDevice, TunDispatcher, TunOffloads
from netstack_gro.errors import DeviceDownError
from netstack_gro.hooks import TunWriter

# Partial checksums: a kernel that sends to a kernel need not sum up what never left the machine.
CONFIG = GroConfig(udp=True, capacity=64, delivered_checksums="partial")


class Way:
    """One direction: what is read from a device is merged and written to another."""

    def __init__(self, source: TunDevice, target: TunDevice) -> None:
        self.writer = TunWriter(target)
        self.dispatcher = TunDispatcher(source, self.writer, CONFIG)

    def carry(self) -> None:
        """Until the dispatcher is stopped."""
        while True:
            try:
                self.dispatcher.run()
            except DeviceDownError:
                self.writer.take_back()  # as on a cable, what goes to a device that is down is lost
            else:
                return

    def report(self) -> str:
        stats, written = self.dispatcher.stats.engine, self.writer.stats
        return (
            f"{self.dispatcher.name}: {stats.packets_in:,} packets read, "
            f"{stats.packets_out:,} passed on, {stats.super_packets:,} of them merged from "
            f"{stats.segments:,}; {written.super_packets:,} written as super-packets"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Carry packets between two TUN devices.")
    parser.add_argument("devices", nargs=2, metavar="NAME", help="a TUN device to make or attach")
    parser.add_argument("--wire", action="store_true", help="have the kernel cut what it sends")
    asked = parser.parse_args()
    offloads = TunOffloads.none() if asked.wire else None
    try:
        with ExitStack() as stack:
            left, right = (
                stack.enter_context(TunDevice(name, offloads=offloads)) for name in asked.devices
            )
            ways = [Way(left, right), Way(right, left)]

            def stop(*_: object) -> None:
                for way in ways:
                    way.dispatcher.stop()

            signal.signal(signal.SIGINT, stop)
            signal.signal(signal.SIGTERM, stop)
            for way in ways:
                stack.enter_context(way.dispatcher)
            threads = [threading.Thread(target=way.carry) for way in ways]
            for thread in threads:
                thread.start()
            print(f"carrying between {left.name} and {right.name}", flush=True)
            for thread in threads:
                thread.join()
            for way in ways:
                print(way.report())
    except GroError as error:
        print(f"forward: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
