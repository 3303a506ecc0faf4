"""On systems without Linux's calls everything can be imported, and says what it needs."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.engineless

ELSEWHERE = """
import sys, os, select, socket, pkgutil, importlib
import ctypes, asyncio, logging, tempfile, subprocess  # they look at the platform themselves
sys.platform = {platform!r}
for name in ("fcntl", "termios", "pwd", "grp", "resource"):
    sys.modules[name] = None
for owner, names in (
    (os, ("eventfd", "eventfd_read", "eventfd_write", "readv", "writev", "set_blocking", "uname")),
    (select, ("poll", "epoll", "POLLIN", "POLLERR", "POLLHUP", "POLLNVAL")),
    (socket, ("AF_PACKET", "AF_UNIX", "CMSG_SPACE", "CMSG_LEN", "SO_REUSEPORT", "MSG_DONTWAIT")),
):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)

import netstack_gro, netstack_gro.dispatchers, netstack_gro.hooks, netstack_gro.cli
for package in (netstack_gro.dispatchers, netstack_gro.hooks, netstack_gro):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

from netstack_gro import UnsupportedError
from netstack_gro.dispatchers import *

for make in (
    lambda: RecvMmsgDispatcher("eth0", print),
    lambda: PacketRingDispatcher("eth0", print),
    lambda: ReadvDispatcher(os.pipe()[0], print),
    lambda: TunDispatcher("tun0", print),
    lambda: TunDevice("tun0"),
    lambda: open_packet_socket("eth0"),
    lambda: UdpDispatcher(("", 0), print),
):
    try:
        make()
    except UnsupportedError as error:
        assert "Linux" in str(error), error
    else:
        raise AssertionError("it was made")
print("imported")
"""


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_everything_can_be_imported_and_live_dispatchers_say_that_they_need_linux(
    platform: str,
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", ELSEWHERE.format(platform=platform)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("imported\n", "")
