"""Flow: what a `never_merge` predicate is asked about."""

from typing import NamedTuple

__all__ = ["Flow"]


class Flow(NamedTuple):
    """One direction of a TCP connection, or UDP between two ports.

    interface: the interface's number. protocol: 6 (TCP) or 17 (UDP). source, destination: IP
    addresses as 4 or 16 bytes in network order. Ports are 0 to 65,535.
    """

    interface: int
    protocol: int
    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
