"""The other engine, in a process of its own: answers each line, a time in seconds, by a round."""

import json
import sys

from benchmarks.timing import measure

from .cases import OTHER

__all__ = ["serve"]


def serve() -> None:
    """Answer by a line of JSON, the nanoseconds a packet of each setting, till the input ends."""
    loops = {setting: setting.prepare() for setting in OTHER}
    for line in sys.stdin:
        seconds = float(line)
        found = [measure(loop, seconds) / each.packets for each, loop in loops.items()]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    serve()
