"""Functions run with fewer rights than the tests have: capabilities belong to a thread.

The thread that runs the function has given them up, and they end with it. What the function
starts (threads, processes) has no more than that. Needs root.
"""

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

from tests import namespaces

T = TypeVar("T")

# include/uapi/linux/capability.h
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13
CAP_SYS_ADMIN = 21
_VERSION_3 = 0x20080522

CLONE_NEWUSER = 0x10000000  # include/uapi/linux/sched.h
PR_SET_SECUREBITS = 28  # include/uapi/linux/prctl.h
SECBIT_NOROOT = 1  # include/uapi/linux/securebits.h

_libc = ctypes.CDLL(None, use_errno=True)


def give_up(*kept: int) -> None:
    """Keep these capabilities of the calling thread and no others, also across execve(2)."""
    _check(_libc.prctl(PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0), "prctl")
    mask = sum(1 << capability for capability in kept)
    # struct __user_cap_header_struct, and effective, permitted, inheritable of each 32 of them
    header = struct.pack("=Ii", _VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("=3I12x", mask, mask, mask)), "capset")


def with_only(capabilities: tuple[int, ...], function: Callable[[], T]) -> T:
    """What ``function`` returns in a thread that has these capabilities and no others."""
    return _in_thread(lambda: give_up(*capabilities), function)


def _in_thread(prepare: Callable[[], object], function: Callable[[], T]) -> T:
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            prepare()
            result.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def enter_user_namespace() -> None:
    """Make this process root of a user namespace of its own, and of nothing outside.

    It must have one thread: call it in a child. OSError where the system allows none.
    """
    namespaces.unshare(CLONE_NEWUSER)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
