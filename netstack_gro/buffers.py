"""What callers hand in, as plain bytes and plain integers.

Neither can be taken on trust: a buffer may be of any shape, and a subclass of int may compare as
it likes, so what is checked elsewhere is what these return.
"""

import operator
from typing import Any

__all__ = ["contiguous", "exact"]


def contiguous(data: Any) -> memoryview:
    """A read-only view of ``data`` as plain bytes. Raises TypeError where that cannot be had."""
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(f"a bytes-like object is required, not {type(data).__name__!r}") from None
    if not view.c_contiguous:
        raise TypeError(f"{type(data).__name__!r} object is not contiguous")
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    return view.toreadonly()


def exact(value: Any) -> int:
    """The plain int that an integer of any kind stands for; TypeError for anything else.

    A subclass of int may compare as it likes, so what is checked is not it but its value.
    """
    return int.__index__(operator.index(value))
