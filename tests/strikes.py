"""Signal handlers that raise, at a given moment or at random; and what has arrived all the same."""

import dis
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Strike:
    """Raises KeyboardInterrupt before the ``number``-th instruction (or line) of some files.

    files: their names, and whether each instruction counts or each line. active: whether the call
    has begun.
    """

    def __init__(self, number: int, files: dict[str, bool], active: Callable[[], bool]) -> None:
        self.left = number
        self.struck = False
        self._files = files
        self._active = active

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        by_instruction = self._files.get(os.path.basename(frame.f_code.co_filename))  # noqa: PTH119
        if by_instruction is None:
            return None
        frame.f_trace_opcodes = by_instruction
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:
        # No handler is run before a NOP, which for the compiler lies outside of any ``try``.
        idle = frame.f_code.co_code[frame.f_lasti] == dis.opmap["NOP"]
        if event in {"line", "opcode"} and not idle and self._active():
            self.left -= 1
            if self.left < 0:
                self.struck = True
                raise KeyboardInterrupt
        return self._step

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> bool:
        sys.settrace(self._before)
        return kind is KeyboardInterrupt


@contextmanager
def alarms() -> Iterator[Callable[[float, Callable[[], object]], None]]:
    """Calls something, and after so many seconds a signal handler raises in it or never."""

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    def alarmed(seconds: float, call: Callable[[], object]) -> None:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass

    previous = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # an exception within one of its callbacks would reach nobody
    try:
        yield alarmed
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, previous)


def arrived(opened: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(opened.recv(65_535))
        except BlockingIOError:
            return found
