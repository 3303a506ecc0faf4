"""Records every capture of this folder anew: `python -m pcaps.record`, as root (`make pcaps`).

The files are replaced when all recordings have succeeded, and only then; `manifest.json` says
what each holds, README.md tells it. With names as arguments, only those files are recorded.
Needs veth, TUN, pyroute2, and a Linux that sends UDP_SEGMENT trains through a device without
checksum offload (6.18 does; older ones answer EIO).
"""

import gzip
import io
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from netstack_gro.capture import PcapngWriter, PcapWriter
from pcaps import page
from pcaps.recorder.facts import BrokenPromiseError
from pcaps.recorder.scenarios import SCENARIOS, Recording, Scenario
from pcaps.recorder.tap import TapOverflowError
from pcaps.recorder.traffic import TrafficLostError

FOLDER = Path(__file__).resolve().parent
MANIFEST = "manifest.json"
ATTEMPTS = 5
LARGEST_IN_ALL = 8_000_000


def main(names: list[str]) -> int:
    if os.geteuid():
        print("pcaps: recording makes network namespaces and needs root", file=sys.stderr)
        return 1
    unknown = sorted(set(names) - {scenario.file for scenario in SCENARIOS})
    if unknown:
        print(f"pcaps: no such recording: {', '.join(unknown)}", file=sys.stderr)
        return 1
    chosen = [scenario for scenario in SCENARIOS if not names or scenario.file in names]
    stop = _Stop()
    temporary = Path(tempfile.mkdtemp(prefix=".recording-", dir=FOLDER))
    try:
        _record_all(chosen, temporary, stop)
    except (BrokenPromiseError, TapOverflowError, TrafficLostError, OSError) as error:
        print(f"pcaps: {error}; the files are as they were", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pcaps: interrupted; the files are as they were", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(temporary)
    return 0


class _Stop:
    """Whether a signal asked to stop.

    An exception in the midst of a recording may come where a namespace is made or removed, and
    leave it behind. One recording takes less than a second, so the first signal waits for its
    end; the second does not.
    """

    def __init__(self) -> None:
        self._recorder = os.getpid()
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._recorder:
            # A helper that pyroute2 forked: what this process cleans up is not for it to touch.
            os._exit(128 + number)
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def check(self) -> None:
        """Raises `KeyboardInterrupt`."""
        if self._asked:
            raise KeyboardInterrupt


def _record_all(chosen: list[Scenario], temporary: Path, stop: _Stop) -> None:
    entries = {} if len(chosen) == len(SCENARIOS) else _present_entries()
    for scenario in chosen:
        started = time.monotonic()
        recording = _record(scenario, stop)
        size = _write(temporary / scenario.file, scenario, recording)
        entries[scenario.file] = _entry(scenario, recording)
        print(
            f"{scenario.file:<30} {len(recording.frames):>6} packets {size:>9,} bytes"
            f" {time.monotonic() - started:6.1f} s",
            flush=True,
        )
    in_order = {
        scenario.file: entries[scenario.file] for scenario in SCENARIOS if scenario.file in entries
    }
    (temporary / MANIFEST).write_text(json.dumps(in_order, indent=1) + "\n")
    total = sum(
        (temporary / name if (temporary / name).exists() else FOLDER / name).stat().st_size
        for name in in_order
    )
    if total > LARGEST_IN_ALL:
        raise BrokenPromiseError(f"{total:,} bytes in all, more than {LARGEST_IN_ALL:,}")
    for name in _present_entries().keys() - in_order.keys():
        (FOLDER / name).unlink(missing_ok=True)
    for scenario in chosen:
        (temporary / scenario.file).replace(FOLDER / scenario.file)
    (temporary / MANIFEST).replace(FOLDER / MANIFEST)
    page.write()
    print(f"{'in all':<30} {total:>24,} bytes")


def _present_entries() -> dict[str, Any]:
    try:
        entries: dict[str, Any] = json.loads((FOLDER / MANIFEST).read_text())
    except FileNotFoundError:
        return {}
    return entries


def _record(scenario: Scenario, stop: _Stop) -> Recording:
    """Chance decides what meets what on the way; a recording that fails is tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            recording = scenario.record()
        except (BrokenPromiseError, TapOverflowError, TrafficLostError, OSError) as error:
            if attempt == ATTEMPTS:
                raise type(error)(f"{scenario.file}: {error}") from error
            print(f"{scenario.file}: {error}; again", file=sys.stderr)
            stop.check()
        else:
            stop.check()
            return recording
    raise AssertionError


def _write(target: Path, scenario: Scenario, recording: Recording) -> int:
    """The size of the file."""
    stream = io.BytesIO()
    if scenario.pcapng:
        blocks = PcapngWriter(stream)
        for name, link_type in recording.interfaces:
            blocks.add_interface(link_type, name=name)
        for interface, frame in recording.frames:
            blocks.write(frame.data, frame.timestamp_ns, interface)
    else:
        ((_name, link_type),) = recording.interfaces
        records = PcapWriter(stream, link_type=link_type, byteorder="little")
        for _interface, frame in recording.frames:
            records.write(frame.data, frame.timestamp_ns)
    content = stream.getvalue()
    if scenario.compressed:
        content = gzip.compress(content, mtime=0)
    target.write_bytes(content)
    return len(content)


def _entry(scenario: Scenario, recording: Recording) -> dict[str, Any]:
    release = ".".join(platform.release().split(".")[:2])
    return {
        "shows": scenario.shows,
        "recorded_by": f"Linux {release}",
        "mtu": scenario.mtu,
        "partial_checksums": scenario.partial_checksums,
        "interfaces": [
            {"name": name, "link_type": link_type} for name, link_type in recording.interfaces
        ],
        "facts": recording.facts(),
        **({"cable": dict(recording.done)} if recording.done else {}),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
