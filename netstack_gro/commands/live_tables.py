"""What `live` shows people: a line for each second, a table on a terminal, and a summary."""

from collections.abc import Iterator

from netstack_gro.commands.probe_tables import aligned
from netstack_gro.commands.replay_tables import sections
from netstack_gro.commands.terminal import printable
from netstack_gro.explain import VERDICTS
from netstack_gro.samples import PacketSample, Sample, TrainSample

__all__ = ["HEADINGS_EVERY", "headings", "line", "rows", "summary", "title", "verdicts"]

HEADINGS_EVERY = 20
"""Lines after which the headings are shown again."""

_PACKETS = ("seconds", "packets/s in", "bit/s in", "packets/s out", "bit/s out", "in each", "lost")
_TRAINS = ("seconds", "datagrams/s", "bit/s", "reads/s", "in each", "at most", "lost")
_WIDTHS = (8, 15, 11, 15, 11, 9, 9)

_READERS = {
    "recvmmsg": "recvmmsg(2)",
    "ring": "a packet ring",
    "tun": "read(2)",
    "udp": "recvmmsg(2) and UDP_GRO",
}

Row = tuple[str, str, str]


def title(sample: Sample) -> str:
    """What is watched, how, and for how long."""
    source = printable(sample.source)
    return f"{source}, through {_READERS[sample.dispatcher]}, for {sample.elapsed:.1f} s"


def headings(sample: Sample) -> str:
    """The headings of `line`."""
    return _columns(_TRAINS if isinstance(sample, TrainSample) else _PACKETS)


def line(sample: Sample) -> str:
    """What came within a second."""
    cells: tuple[str, ...] = ()
    if isinstance(sample, PacketSample):
        cells = (
            f"{sample.rate(sample.packets_in):,.0f}",
            _scaled(sample.rate(8 * sample.bytes_in)),
            f"{sample.rate(sample.packets_out):,.0f}",
            _scaled(sample.rate(8 * sample.bytes_out)),
            _mean(sample.segments_per_super_packet),
        )
    elif isinstance(sample, TrainSample):
        cells = (
            f"{sample.rate(sample.datagrams):,.0f}",
            _scaled(sample.rate(8 * sample.bytes)),
            f"{sample.rate(sample.reads):,.0f}",
            _mean(sample.datagrams_per_read),
            f"{sample.largest_train:,}",
        )
    return _columns((f"{sample.elapsed:.1f}", *cells, f"{sample.lost:,}"))


def rows(sample: Sample, total: Sample) -> Iterator[Row]:
    """What there is to see on a terminal: a name, the last second, and all of it."""
    if isinstance(sample, PacketSample) and isinstance(total, PacketSample):
        yield _count("packets read", sample, sample.packets_in, total.packets_in)
        yield _volume(sample, sample.bytes_in, total.bytes_in)
        if total.wire_packets_in != total.packets_in:
            yield _count(_ON_THE_WIRE, sample, sample.wire_packets_in, total.wire_packets_in)
        yield _count("packets delivered", sample, sample.packets_out, total.packets_out)
        yield _volume(sample, sample.bytes_out, total.bytes_out)
        yield _count("super-packets", sample, sample.super_packets, total.super_packets)
        means = [_mean(each.segments_per_super_packet) for each in (sample, total)]
        yield "segments in each", means[0], means[1]
        largest = sample.largest_super_packet, total.largest_super_packet
        yield "at most", f"{largest[0]:,}", f"{largest[1]:,}"
    elif isinstance(sample, TrainSample) and isinstance(total, TrainSample):
        yield _count("datagrams", sample, sample.datagrams, total.datagrams)
        yield _volume(sample, sample.bytes, total.bytes)
        yield _count("reads", sample, sample.reads, total.reads)
        means = [_mean(each.datagrams_per_read) for each in (sample, total)]
        yield "datagrams in each", means[0], means[1]
        yield "at most", f"{sample.largest_train:,}", f"{total.largest_train:,}"
        yield "payload", _sizes(sample), _sizes(total)
    yield _count(_DROPPED, sample, sample.dropped_by_kernel, total.dropped_by_kernel)
    for name, count in total.losses.items():
        yield _count(_LOSSES.get(name, name), sample, sample.losses.get(name, 0), count)


def verdicts(sample: PacketSample, total: PacketSample) -> Iterator[tuple[str, str, str, str]]:
    """The verdicts, the most frequent first: a name, the last second, all of it, a meaning."""
    meanings = {each.name.lower(): text for each, text in VERDICTS.items()}
    for name, count in sorted(total.verdicts.items(), key=lambda item: -item[1]):
        yield *_count(name, sample, sample.verdicts.get(name, 0), count), meanings[name]


def summary(total: Sample) -> str:
    """All of it, as lines of text."""
    known = list(_facts(total))
    lines = [title(total), *(f"  {text}" for text in aligned(known))]
    if isinstance(total, PacketSample):
        for heading, counted in sections(total):
            cells = [(f"{count:,}", name, text) for count, name, text in counted]
            width = max(len(number) for number, _, _ in cells)
            cells = [(number.rjust(width), name, text) for number, name, text in cells]
            lines += ["", f"  {heading}", *(f"  {text}" for text in aligned(cells))]
    return "\n".join(lines) + "\n"


_DROPPED = "dropped by the kernel"
_ON_THE_WIRE = "packets on the wire"

_LOSSES = {
    "truncated": "cut off, being too long",
    "runts": "shorter than their header",
    "damaged": "not within their block",
    "freezes": "times that the ring was full",
    "control_truncated": "without their sizes",
    "malformed": "with sizes that are none",
}


def _facts(total: Sample) -> Iterator[tuple[str, str]]:
    if isinstance(total, PacketSample):
        yield "read", _rated(total, total.packets_in, "packet", total.bytes_in)
        if total.wire_packets_in != total.packets_in:
            merged = f"{total.wire_packets_in:,} packets, some merged by the kernel before"
            yield "on the wire", merged
        yield "delivered", _rated(total, total.packets_out, "packet", total.bytes_out)
        yield "merged", _merged(total)
    elif isinstance(total, TrainSample):
        yield "read", _rated(total, total.datagrams, "datagram", total.bytes)
        yield "trains", _trained(total)
        yield "payload", _sizes(total)
    lost = [f"{total.dropped_by_kernel:,} {_DROPPED}"] if total.dropped_by_kernel else []
    lost += [f"{count:,} {_LOSSES.get(name, name)}" for name, count in total.losses.items()]
    yield "lost", ", ".join(lost) or "nothing"


def _merged(total: PacketSample) -> str:
    if not total.super_packets:
        return "nothing"
    plural = "" if total.super_packets == 1 else "s"
    return (
        f"{total.segments:,} packets into {total.super_packets:,} super-packet{plural}: "
        f"{_mean(total.segments_per_super_packet)} in each, at most {total.largest_super_packet:,}"
    )


def _trained(total: TrainSample) -> str:
    if not total.trains:
        return "none: each datagram came alone" if total.datagrams else "none"
    lone = total.reads - total.trains
    plural = "" if total.trains == 1 else "s"
    return (
        f"{total.datagrams - lone:,} datagrams in {total.trains:,} train{plural}: "
        f"{(total.datagrams - lone) / total.trains:,.1f} in each, at most {total.largest_train:,}"
    )


def _rated(total: Sample, count: int, what: str, octets: int) -> str:
    plural = "" if count == 1 else "s"
    rate, bits = total.rate(count), _scaled(total.rate(8 * octets))
    return f"{count:,} {what}{plural}, {octets:,} bytes: {rate:,.0f} a second, {bits}bit/s"


def _count(name: str, sample: Sample, now: int, ever: int) -> Row:
    return name, f"{sample.rate(now):,.0f}/s", f"{ever:,}"


def _volume(sample: Sample, now: int, ever: int) -> Row:
    return "", f"{_scaled(sample.rate(8 * now))}bit/s", f"{_scaled(ever)}byte"


def _sizes(sample: TrainSample) -> str:
    """The most frequent sizes, with their share."""
    shares = [
        f"{size:,} bytes ({100 * count / sample.datagrams:.0f} %)"
        for size, count in list(sample.sizes.items())[:3]
    ]
    return ", ".join(shares) or "-"


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _scaled(value: float) -> str:
    """A number with its decimal prefix, such as "1.25 G"."""
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.0f} {prefix}" if not prefix else f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:,.1f} T"


def _columns(cells: tuple[str, ...]) -> str:
    return "".join(text.rjust(width) for text, width in zip(cells, _WIDTHS, strict=True))
