"""How long something takes, in CPU time of this process."""

import time
from collections.abc import Callable

__all__ = ["Loop", "measure"]

WARM = 0.1  # of the time asked for

Loop = Callable[[int], object]
"""Does its work so many times. What it costs beside that counts as work, so it is a tight loop."""


def measure(loop: Loop, seconds: float, first: int = 1) -> float:
    """Nanoseconds of one piece of work, over about ``seconds``.

    first: pieces that have been done before the time counts. Where the work goes round through
    memory, as many as take it through all of it, so that the caches hold what they can of that.
    """
    loop(first)
    count = 1
    while (spent := _time(loop, count)) < WARM * seconds * 1e9:
        count *= 2
    repeats = max(1, int(seconds * 1e9 / spent * count))
    return _time(loop, repeats) / repeats


def _time(loop: Loop, count: int) -> int:
    start = time.process_time_ns()
    loop(count)
    return max(time.process_time_ns() - start, 1)
