"""What a capture holds: packets (`Record`) and the interfaces that they were captured on."""

from dataclasses import dataclass, field
from typing import NamedTuple

from netstack_gro.capture.resolution import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["Interface", "Record"]

MAX_RECORD_LENGTH = 256 * 1024 * 1024
"""Bytes in one packet at most.

Twice what libpcap takes for any link type (max_snaplen_for_dlt in pcap-common.c): what claims
more is damage, and is not read in search of its end.
"""

MAX_BLOCK_LENGTH = MAX_RECORD_LENGTH + 1024 * 1024
"""Bytes in one block of a pcapng file at most: the longest packet fits, with 1 MiB to spare for
the block's own fields and options, so that whatever is read can be written."""

MAX_INTERFACES = 65536
"""Interfaces in one capture, over all its sections: descriptions are kept, so they are bounded."""


class Record(NamedTuple):
    """One captured packet."""

    data: bytes
    """The captured bytes, link header included; a frame check sequence too, where one was."""
    timestamp_ns: int
    """Nanoseconds since 1970-01-01 00:00:00 UTC, a signed 64-bit integer, rounded towards the
    past where the file is finer. 0 for a simple packet block, which has no time."""
    wire_length: int
    """Bytes that the packet had before it was cut to a snap length; at least ``len(data)``."""
    interface: int
    """Index into the reader's ``interfaces``, which counts on over the sections of a file."""
    comments: tuple[str, ...]
    """The packet's comments (opt_comment of pcapng); invalid UTF-8 is replaced by U+FFFD."""
    number: int
    """1 for the first packet of the file."""


@dataclass(frozen=True, slots=True)
class Interface:
    """What a capture says of one interface. A pcap file has exactly one, without a name.

    link_type: LINKTYPE_ number; it may be one that this package does not read.
    snap_length: bytes kept of each packet at most, as the file says; 0: not limited.
    name: if_name, or None.
    resolution: the unit of its time stamps, coded as in if_tsresol: n stands for 10**-n
        seconds, 0x80 + n for 2**-n seconds.
    offset: seconds added to each of its time stamps (if_tsoffset).
    """

    link_type: int
    snap_length: int = 0
    name: str | None = None
    resolution: int = 6
    offset: int = 0


@dataclass(slots=True)
class Findings:
    """What reading has found so far besides records; shared by the reader and its parser."""

    interfaces: list[Interface] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    truncated: bool = False
    _reported: set[str] = field(default_factory=set)

    def warn_once(self, subject: str, message: str) -> None:
        """Add a warning, unless ``subject`` had one: a hostile file repeats its faults."""
        if subject not in self._reported:
            self._reported.add(subject)
            self.warnings.append(message)

    def ended(self, offset: int, left: int, need: int, number: int, cut: bool) -> None:
        """The data ended at ``offset`` + ``left``, where ``need`` bytes from ``offset`` were due.

        That is as it should be if nothing is left, unless compressed data was ``cut``.
        """
        if not left and not cut:
            return
        self.truncated = True
        what = "compressed data ends early" if cut else "the file ends within a record"
        missing = f" ({left} of {need} bytes)" if left else ""
        self.warnings.append(f"byte {offset + left}: {what}{missing}, after {number} packets")

    def short_original_length(self, number: int) -> None:
        """A packet says that it was shorter than what was captured of it."""
        message = f"record {number}: original length below the captured one, which was taken"
        self.warn_once("original length", message)

    def clamped(self, timestamp_ns: int, number: int) -> int:
        """The signed 64-bit time closest to one that does not fit."""
        message = f"record {number}: time {timestamp_ns} ns is out of range and was clamped"
        self.warn_once("time", message)
        return max(MIN_TIMESTAMP, min(timestamp_ns, MAX_TIMESTAMP))
