"""Gates for tests that need more of the machine than Python: root, TUN, namespaces.

A gate is a reason why the test cannot run, or None. `require` turns a reason into a skip on a
developer's machine and into a failure in CI, where a skip would hide that nothing was tested.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

TUN = Path("/dev/net/tun")


def require(reason: str | None) -> None:
    """Go on where ``reason`` is None; otherwise skip, or fail with CI=true in the environment."""
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true allows no skip: {reason}", pytrace=False)
    pytest.skip(reason)


def require_both_engines(engines: int) -> None:
    """Skip where this process has one engine only, unless it was to be compiled: then fail."""
    if engines > 1:
        return
    reason = "this process has no compiled engine"
    forced = os.environ.get("NETSTACK_GRO_INTERPRETED", "0") not in {"", "0"}
    if os.environ.get("NETSTACK_GRO_BUILD") == "compiled" and not forced:
        require(reason)
    pytest.skip(reason)


def lacks_root() -> str | None:
    """Why namespaces cannot be made here: not Linux, not root, or no pyroute2 to set them up."""
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return f"needs root, the effective user ID is {os.geteuid()}"
    if importlib.util.find_spec("pyroute2") is None:
        return "needs pyroute2 (dependency group test)"
    return None


def lacks_tun() -> str | None:
    """Why no TUN device can be made here: `lacks_root`, or no usable /dev/net/tun."""
    reason = lacks_root()
    if reason is not None:
        return reason
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except OSError as error:
        return f"needs {TUN}: {error.strerror}"
    return None


def lacks_kernel(*release: int) -> str | None:
    """Why this kernel is too old: its release is below ``release``, such as (6, 18)."""
    running = os.uname().release
    numbers = tuple(int(part) for part in running.split("-", 1)[0].split(".") if part.isdigit())
    if numbers[: len(release)] < release:
        return f"needs Linux {'.'.join(map(str, release))} or later, this is {running}"
    return None
