"""Counters of one engine, as a snapshot that can be added to another's."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from netstack_gro.verdicts import CloseReason, Verdict

__all__ = ["Stats", "shown"]


def _zero_verdicts() -> Mapping[Verdict, int]:
    return dict.fromkeys(Verdict, 0)


def _zero_reasons() -> Mapping[CloseReason, int]:
    return {reason: 0 for reason in CloseReason if reason is not CloseReason.NOT_HELD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What an engine has done since it was made.

    batches: flushes that delivered something. packets_in, bytes_in: inputs delivered.
    packets_out, bytes_out: packets given to the hook, with their rewritten headers.
    super_packets: delivered packets made of at least two inputs; segments: the inputs in them.
    verdicts: inputs by `Verdict`; the values sum to packets_in.
    closed: delivered heads by `CloseReason`. pinned: header spaces that had to be replaced
    because a hook kept a view of one.
    """

    batches: int = 0
    packets_in: int = 0
    bytes_in: int = 0
    packets_out: int = 0
    bytes_out: int = 0
    super_packets: int = 0
    segments: int = 0
    pinned: int = 0
    verdicts: Mapping[Verdict, int] = field(default_factory=_zero_verdicts)
    closed: Mapping[CloseReason, int] = field(default_factory=_zero_reasons)

    def __repr__(self) -> str:
        return shown(self)

    def __add__(self, other: "Stats") -> "Stats":
        if not isinstance(other, Stats):
            return NotImplemented
        return Stats(
            batches=self.batches + other.batches,
            packets_in=self.packets_in + other.packets_in,
            bytes_in=self.bytes_in + other.bytes_in,
            packets_out=self.packets_out + other.packets_out,
            bytes_out=self.bytes_out + other.bytes_out,
            super_packets=self.super_packets + other.super_packets,
            segments=self.segments + other.segments,
            pinned=self.pinned + other.pinned,
            verdicts={key: self.verdicts[key] + other.verdicts[key] for key in Verdict},
            closed={key: count + other.closed[key] for key, count in self.closed.items()},
        )


def shown(value: Any) -> str:
    """The repr of statistics, without what is 0 or empty."""
    if is_dataclass(value):
        inner = ((each.name, shown(getattr(value, each.name))) for each in fields(value))
        text = ", ".join(f"{name}={text}" for name, text in inner if text not in {"0", "{}"})
        return f"{type(value).__name__}({text})"
    if isinstance(value, Mapping):
        counted = ((_key(key), count) for key, count in value.items() if count)
        return "{" + ", ".join(f"{key}: {count!r}" for key, count in counted) + "}"
    return repr(value)


def _key(key: object) -> str:
    return str(key.name) if isinstance(key, Enum) else repr(key)
