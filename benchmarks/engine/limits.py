"""The limits: memcpy and the fastest RFC 1071 sum in C, on the same bytes as the engine."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.batches import SLOT
from benchmarks.building import HEADERS, compiler, python_headers, run
from benchmarks.timing import Loop

__all__ = ["Limits", "build"]

SUMS = (
    "the engine's own",
    "add with carry",
    "AVX2",
    "AVX-512",
    "AVX-512 VNNI",
)
"""By their numbers in limits.c."""


def build(folder: Path) -> "Limits":
    """Compile limits.c into ``folder`` and load it; `Missing` where that cannot be done."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder.resolve() / "limits.so"
    source = Path(__file__).with_name("limits.c")
    command = [compiler(), "-O3", "-shared", "-fPIC", f"-I{HEADERS}", f"-I{python_headers()}"]
    run([*command, str(source), "-o", str(library)])
    return Limits(library)


class Limits:
    """The compiled functions, for bytes that lie as the engine's packets do."""

    def __init__(self, library: Path) -> None:
        self._library = found = ctypes.CDLL(str(library))
        layout: list[Any] = [ctypes.c_void_p, *[ctypes.c_size_t] * 5]
        found.limits_has.argtypes = [ctypes.c_int]
        found.limits_sum_one.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        found.limits_sum_one.restype = ctypes.c_uint
        found.limits_sum.argtypes = [ctypes.c_int, *layout]
        found.limits_copy.argtypes = [ctypes.c_void_p, *layout]
        found.limits_copy.restype = None
        self.sums = [name for number, name in enumerate(SUMS) if found.limits_has(number)]
        """The names of the sums that this CPU has instructions for."""

    def sum_of(self, name: str, data: bytes) -> int:
        """The ones'-complement sum of ``data``, for checks."""
        found: int = self._library.limits_sum_one(SUMS.index(name), data, len(data))
        return found

    def summing(
        self, name: str, slab: bytearray, start: int, length: int, count: int, batches: int
    ) -> Loop:
        """What sums so many batches: ``count`` pieces of ``length`` bytes, in slots of a slab."""
        function = self._library.limits_sum
        return _loop(function, (SUMS.index(name),), slab, start, SLOT, length, count, batches)

    def copying(
        self, target: bytearray, slab: bytearray, stride: int, length: int, count: int
    ) -> Loop:
        """What so often copies ``count`` pieces to ``target``, by a memcpy for each."""
        if len(target) < length * count:
            raise ValueError(f"{length * count} bytes do not fit {len(target)}")
        into = (ctypes.c_char * len(target)).from_buffer(target)
        function = self._library.limits_copy
        return _loop(function, (into,), slab, 0, stride, length, count, 1)


def _loop(
    function: Callable[..., object],
    first: tuple[object, ...],
    slab: bytearray,
    start: int,
    stride: int,
    length: int,
    count: int,
    batches: int,
) -> Loop:
    last = ((batches * count) - 1) * stride + start + length
    if last > len(slab):
        raise ValueError(f"the pieces end at {last}, the slab at {len(slab)}")
    base = (ctypes.c_char * len(slab)).from_buffer(slab)
    address = ctypes.addressof(base) + start

    def loop(repeats: int, _keep: object = base) -> None:
        function(*first, address, stride, length, count, batches, repeats)

    return loop
