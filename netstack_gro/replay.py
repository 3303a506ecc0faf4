"""Replay: a capture through the engine, and a report of what became of its packets.

    report = replay("trace.pcapng", ReplayOptions(batch=64, verify=True))
    print(report.super_packets, report.verdicts)

It is what the command ``netstack-gro replay`` does for each file.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike, fsdecode
from typing import IO, Any

import netstack_gro
from netstack_gro.capture import CaptureReader, Record, link_name, open_capture
from netstack_gro.config import GroConfig, Limits
from netstack_gro.dispatchers.capture import DEFAULT_BATCH, CaptureDispatcher, CaptureStats
from netstack_gro.dispatchers.offloads import Offload
from netstack_gro.errors import CaptureError, GroError
from netstack_gro.file_order import FileOrder
from netstack_gro.hooks.capture_file import CaptureFileSink
from netstack_gro.packet import Packet
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.verify import Verifier

__all__ = ["OutputError", "ReplayOptions", "Report", "engine_name", "replay"]

WINDOW_CAPACITY = 4096
"""Packets of one window that are merged together at most; a larger one is flushed in pieces."""

_PROGRESS_EVERY = 64  # dispatches


class OutputError(GroError, OSError):
    """What was delivered could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a capture is replayed.

    batch, window_ns, mtu: as `CaptureDispatcher` has them. udp: whether UDP is merged too.
    verify: cut every super-packet again and compare with the file.
    """

    batch: int | None = None
    window_ns: int | None = None
    udp: bool = True
    mtu: int | None = None
    verify: bool = False


@dataclass(slots=True, kw_only=True)
class Report:
    """What a replay found; `to_json` is the object that ``--json`` prints.

    file: the name. error: why reading broke off, or None. engine: "compiled" or "interpreted".
    link_types: LINKTYPE_ numbers in the file. interfaces: each with link_type, name and packets.
    batch, window_ns: how batches were formed; one of them is None.
    packets_in, bytes_in, packets_out, bytes_out: what was read and what was delivered.
    super_packets: delivered packets made of at least two; segments: the packets in them.
    largest_segments, largest_bytes: packets in the super-packet of most, bytes in the longest.
    verdicts: packets_in by `Verdict`; closed: super-packets and candidates that stayed alone by
    `CloseReason`. Names in lower case, without those that are 0.
    truncated: packets of which the file holds only the beginning. already_aggregated: packets
    recognised as several in one. checksum_offload: packets recognised as captured before their
    checksums were filled in, as "transport" and "ip_header".
    verified: True or False, None where it was not asked for; faults: what it found, in words.
    warnings: what was amiss and did no harm.
    """

    file: str
    engine: str
    batch: int | None
    window_ns: int | None
    link_types: list[int] = field(default_factory=list)
    interfaces: list[dict[str, Any]] = field(default_factory=list)
    packets_in: int = 0
    packets_out: int = 0
    super_packets: int = 0
    segments: int = 0
    largest_segments: int = 0
    largest_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    already_aggregated: int = 0
    checksum_offload: dict[str, int] = field(
        default_factory=lambda: {"transport": 0, "ip_header": 0}
    )
    verified: bool | None = None
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: str | None = None

    @classmethod
    def begin(cls, file: str, options: ReplayOptions) -> "Report":
        """A report of nothing yet."""
        batch = options.batch
        if batch is None and options.window_ns is None:
            batch = DEFAULT_BATCH
        return cls(file=file, engine=engine_name(), batch=batch, window_ns=options.window_ns)

    def to_json(self) -> str:
        """The report as one line of JSON, in ASCII."""
        return json.dumps(asdict(self))


def engine_name() -> str:
    """Which engine runs: "compiled" or "interpreted"."""
    return "compiled" if netstack_gro.__compiled__ else "interpreted"


def replay(
    source: str | PathLike[str] | IO[bytes] | CaptureReader,
    options: ReplayOptions | None = None,
    *,
    sink: CaptureFileSink | None = None,
    progress: Callable[[CaptureReader], object] | None = None,
) -> Report:
    """Replay one capture.

    sink: where to write what the engines deliver, in the file's order; its interfaces are made
    anew. progress: called from time to time, as reading goes on.

    A capture that cannot be read, or only in part, is no exception but a report with ``error``.
    Raises ConfigError for options out of range, OutputError where the sink fails, and what
    ``progress`` raises.
    """
    options = ReplayOptions() if options is None else options
    name = source.name if isinstance(source, CaptureReader) else _name_of(source)
    report = Report.begin(name, options)
    try:
        reader = source if isinstance(source, CaptureReader) else open_capture(source)
    except CaptureError as error:
        report.error = str(error)
        return report
    with reader:
        run = _Replay(reader, options, sink)
        try:
            run.run(progress)
        except CaptureError as error:
            report.error = str(error)
        run.fill(report)
    return report


class _Replay:
    """One capture on its way: the hook of its engines, and the observer of its records."""

    def __init__(
        self, reader: CaptureReader, options: ReplayOptions, sink: CaptureFileSink | None
    ) -> None:
        self.reader = reader
        self.largest_segments = 0
        self.largest_bytes = 0
        self.counts: dict[int, int] = {}
        self.verifier = Verifier() if options.verify else None
        self.sink = sink
        self.clamped = sink.clamped if sink is not None else 0
        if sink is not None:
            sink.forget_interfaces()
        self.known: set[int] = set()
        # A pcap file has one interface, whose engine keeps the order.
        self.order: FileOrder | None = None
        if sink is not None and reader.format == "pcapng":
            self.order = FileOrder(self.write)
        watched = self.verifier is not None or self.order is not None
        config = GroConfig(udp=options.udp, capacity=WINDOW_CAPACITY)
        self.dispatcher = CaptureDispatcher(
            reader,
            _Hook(self.take, sink.limits) if sink is not None else self.take,
            config,
            batch=options.batch,
            window_ns=options.window_ns,
            mtu=options.mtu,
            observer=self.observe if watched else None,
            scrubbable=options.verify,
        )

    def run(self, progress: Callable[[CaptureReader], object] | None) -> None:
        """Dispatch the whole capture. Raises the reader's error after what came before it."""
        dispatcher = self.dispatcher
        turns = 0
        try:
            while not dispatcher.exhausted:
                dispatcher.dispatch_once()
                if self.order is not None:
                    self.order.release(dispatcher.held_from)
                turns += 1
                if progress is not None and not turns % _PROGRESS_EVERY:
                    progress(self.reader)
        except CaptureError:
            if self.order is not None:
                self.order.release(None)
            raise
        finally:
            if self.verifier is not None and dispatcher.held_from is None:
                self.verifier.finish()

    def observe(self, record: Record, found: Offload) -> None:
        """Keep the record apart before it is dispatched."""
        if self.order is not None:
            self.order.read(record)
        if self.verifier is not None:
            described = self.reader.interfaces[record.interface]
            self.verifier.expect(record, found, link_name(described.link_type))

    def take(self, packets: list[Packet]) -> None:
        """The engines' hook."""
        number = packets[0].interface
        inputs = 0
        for packet in packets:
            count = packet.packets
            inputs += count
            if count > 1:
                self.largest_segments = max(self.largest_segments, count)
                self.largest_bytes = max(self.largest_bytes, len(packet))
        self.counts[number] = self.counts.get(number, 0) + inputs
        if self.verifier is not None:
            for packet in packets:
                packet.detach()
            self.dispatcher.scrub()
            self.verifier.deliver(packets)
        if self.order is not None:
            self.order.deliver(packets)
        elif self.sink is not None:
            self.write(packets)

    def write(self, packets: list[Packet]) -> None:
        """Give packets to the sink, which is told of each interface before its first packet."""
        assert self.sink is not None
        try:
            for packet in packets:
                number = packet.interface
                if number not in self.known:
                    self.known.add(number)
                    described = self.reader.interfaces[number]
                    self.sink.add_interface(number, described.link_type, name=described.name)
            self.sink(packets)
        except (OSError, ValueError) as error:
            raise _output_error(error) from error

    def fill(self, report: Report) -> None:
        """Write down what happened."""
        stats: CaptureStats = self.dispatcher.stats
        engine = stats.engine
        report.link_types = list(dict.fromkeys(each.link_type for each in self.reader.interfaces))
        report.interfaces = [
            {
                "name": each.name,
                "link_type": each.link_type,
                "packets": self.counts.get(number, 0),
            }
            for number, each in enumerate(self.reader.interfaces)
        ]
        report.packets_in = engine.packets_in
        report.packets_out = engine.packets_out
        report.bytes_in = engine.bytes_in
        report.bytes_out = engine.bytes_out
        report.super_packets = engine.super_packets
        report.segments = engine.segments
        report.largest_segments = self.largest_segments
        report.largest_bytes = self.largest_bytes
        report.verdicts = _named(engine.verdicts)
        report.closed = _named(engine.closed)
        report.truncated = stats.truncated
        report.already_aggregated = stats.already_aggregated
        report.checksum_offload = {
            "transport": stats.partial_checksums,
            "ip_header": stats.empty_ip_checksums,
        }
        report.warnings = list(self.reader.warnings)
        clamped = self.sink.clamped - self.clamped if self.sink is not None else 0
        if clamped:
            report.warnings.append(f"{clamped} packets from before 1970 were written with time 0")
        if self.verifier is not None:
            report.verified = self.verifier.ok
            report.faults = [str(fault) for fault in self.verifier.faults]


class _Hook:
    """A hook with the limits of the sink behind it."""

    def __init__(self, take: Callable[[list[Packet]], None], limits: Limits) -> None:
        self.take = take
        self.limits = limits

    def __call__(self, packets: list[Packet], /) -> None:
        self.take(packets)


def _named(counts: Mapping[Verdict, int] | Mapping[CloseReason, int]) -> dict[str, int]:
    return {key.name.lower(): count for key, count in counts.items() if count}


def _name_of(source: object) -> str:
    if source == "-":
        return "standard input"
    if isinstance(source, str | PathLike):
        return fsdecode(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<stream>"


def _output_error(error: OSError | ValueError) -> OutputError:
    """The error of a sink, told apart from the reader's; it keeps the errno."""
    result = OutputError(getattr(error, "strerror", None) or str(error))
    if isinstance(error, OSError):
        result.errno = error.errno
    return result
