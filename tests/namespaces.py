"""Private network and mount namespaces for the process that asks, and a sysfs to go with them.

There is no way back into the old ones: call these in a child process. Everything made in the
namespaces (devices, addresses, mounts) is gone when their last process is.
"""

import ctypes
import os
import signal

CLONE_NEWNS = 0x00020000  # include/uapi/linux/sched.h
CLONE_NEWNET = 0x40000000
MS_REC = 0x4000  # include/uapi/linux/mount.h
MS_PRIVATE = 1 << 18
PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


def enter_private_network() -> None:
    """Move this process into a new network and a new mount namespace; /sys shows the former.

    sysfs shows the network devices of the namespace it was mounted from, so a private network
    needs a sysfs of its own. Raises OSError where the kernel refuses (PermissionError: this
    root lacks CAP_SYS_ADMIN).
    """
    unshare(CLONE_NEWNET | CLONE_NEWNS)
    mount(None, "/", None, MS_REC | MS_PRIVATE)  # or the next mount would be seen by all
    mount("sysfs", "/sys", "sysfs", 0)


def unshare(flags: int) -> None:
    """unshare(2) for the calling thread. (os.unshare is there from Python 3.12 on.)"""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    """mount(2) without options."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), None), f"mount on {target}")


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
