"""CaptureFileSink: writes what an engine delivers to a pcapng file.

    with open("merged.pcapng", "wb") as stream:
        sink = CaptureFileSink(stream)
        with GroDispatcher(sink, GroConfig(link="ethernet", udp=True)) as gro:
            ...

A super-packet is one packet of the file, with complete checksums, at the time of its first
segment; a comment on it names the times of the others.
"""

from collections.abc import Iterable, Iterator
from typing import IO

from netstack_gro.capture import LINK_NAMES, PcapngWriter
from netstack_gro.capture.blocks import MAX_OPTION_LENGTH
from netstack_gro.config import MAX_UDP_SEGMENTS, Limits, Link
from netstack_gro.packet import Packet

__all__ = ["CaptureFileSink", "segment_times"]

# The number to write for a link layer that has several.
_LINK_TYPES: dict[Link, int] = {name: number for number, name in LINK_NAMES.items()}

_TIMES_IN_COMMENT = 2500
"""Times in one comment: of at most 21 characters each, so that 65,535 bytes hold them."""

_START = "GRO: "
_AT = "others at "


class CaptureFileSink:
    """A sink that writes pcapng to ``stream``, a buffered binary file that stays the caller's.

    limits: what it takes; by default everything, with complete checksums. To be replaced as a
        whole.

    Each number in `Packet.interface` becomes an interface of the file, as `add_interface` says
    or, where it was not called, with the packet's link layer and without a name. An error of the
    stream propagates.
    """

    __slots__ = ("_clamped", "_interfaces", "_packets", "_writer", "limits")

    def __init__(self, stream: IO[bytes], *, limits: Limits | None = None) -> None:
        if limits is None:
            limits = Limits(udp=True, max_udp_segments=MAX_UDP_SEGMENTS)
        self.limits: Limits = limits
        self._writer = PcapngWriter(stream)
        self._interfaces: dict[int, int] = {}
        self._packets = 0
        self._clamped = 0

    @property
    def packets(self) -> int:
        """Packets written."""
        return self._packets

    @property
    def clamped(self) -> int:
        """Packets from before 1970, which pcapng cannot tell; they were written with time 0."""
        return self._clamped

    def add_interface(self, number: int, link_type: int, *, name: str | None = None) -> None:
        """Say what `Packet.interface` ``number`` means from now on: a new interface of the file.

        link_type: LINKTYPE_ number. name: of one over 65,535 bytes of UTF-8, the beginning is
        written. Raises CaptureFormatError for what pcapng cannot hold.
        """
        if name is not None and len(name) > MAX_OPTION_LENGTH // 4:  # bytes of a character
            name = _clipped(name)
        self._interfaces[number] = self._writer.add_interface(link_type, name=name)

    def forget_interfaces(self) -> None:
        """Numbers mean other interfaces from now on, as with another source of packets."""
        self._interfaces.clear()

    def __call__(self, packets: Iterable[Packet], /) -> None:
        """Write the packets, in the order given."""
        for packet in packets:
            number = packet.interface
            if number not in self._interfaces:
                self.add_interface(number, _LINK_TYPES[packet.link])
            times = packet.timestamps()
            time = times[0]
            if time < 0:
                time = 0
                self._clamped += 1
            length = packet.wire_length
            data = bytes(packet)
            self._writer.write(
                data,
                time,
                self._interfaces[number],
                wire_length=length if length > len(data) else None,
                comments=_comments(packet, times) if len(times) > 1 else (),
            )
            self._packets += 1


def segment_times(comments: Iterable[str]) -> tuple[int, ...]:
    """The times, in nanoseconds, that a `CaptureFileSink` noted in the comments of a packet."""
    times: list[int] = []
    for comment in comments:
        _, found, listed = comment.partition(_AT)
        if comment.startswith(_START) and found:
            times += [_nanoseconds(text) for text in listed.split()]
    return tuple(times)


def _comments(packet: Packet, times: tuple[int, ...]) -> Iterator[str]:
    """What is said of a super-packet; pcapng allows several comments on a packet."""
    text = f"{_START}{packet.packets} packets of {packet.gso_size} bytes of payload, {_AT}"
    for start in range(1, len(times), _TIMES_IN_COMMENT):
        listed = times[start : start + _TIMES_IN_COMMENT]
        yield text + " ".join(map(_seconds, listed))
        text = f"{_START}{_AT}"


def _clipped(name: str) -> str:
    """As many characters of a name as an option can hold."""
    value = name.encode("utf-8", "replace")
    if len(value) <= MAX_OPTION_LENGTH:
        return name
    return value[:MAX_OPTION_LENGTH].decode("utf-8", "ignore")


def _seconds(nanoseconds: int) -> str:
    """Seconds since 1970 with nine decimals, exactly."""
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), 10**9)
    return f"{sign}{whole}.{rest:09}"


def _nanoseconds(seconds: str) -> int:
    whole, _, rest = seconds.removeprefix("-").partition(".")
    value = int(whole) * 10**9 + int(rest)
    return -value if seconds.startswith("-") else value
