"""Time stamps of any resolution as integer nanoseconds, and back. No float is involved.

The coding of a resolution is that of if_tsresol (draft-ietf-opsawg-pcapng, Interface Description
Block): n stands for units of 10**-n seconds, 0x80 + n for units of 2**-n seconds.
"""

NANOSECONDS = 1_000_000_000
MIN_TIMESTAMP = -(1 << 63)
MAX_TIMESTAMP = (1 << 63) - 1

_POWER_OF_TWO = 0x80


def units_per_second(resolution: int) -> int:
    """How many units of ``resolution`` make a second."""
    exponent = resolution & ~_POWER_OF_TWO
    return 1 << exponent if resolution & _POWER_OF_TWO else int(10**exponent)


def nanoseconds_of(resolution: int, offset: int) -> tuple[int, int, int]:
    """``(multiplier, divisor, addend)`` such that, for a time stamp of ``units``,
    ``units * multiplier // divisor + addend`` is its time in nanoseconds, rounded down.

    ``offset`` is in seconds. The multiplier is never 0, and the divisor is 1 for every
    power of ten down to nanoseconds.
    """
    units = units_per_second(resolution)
    addend = offset * NANOSECONDS
    if NANOSECONDS % units == 0:
        return NANOSECONDS // units, 1, addend
    return NANOSECONDS, units, addend


def units_of(timestamp_ns: int, resolution: int, offset: int) -> int:
    """The time stamp to store for a time in nanoseconds; it may be out of a field's range.

    A unit longer than a nanosecond rounds down. A shorter one rounds up, because reading rounds
    down: so every nanosecond survives being written and read.
    """
    units = units_per_second(resolution)
    product = (timestamp_ns - offset * NANOSECONDS) * units
    return product // NANOSECONDS if units <= NANOSECONDS else -(-product // NANOSECONDS)
