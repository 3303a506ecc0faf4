"""Networks to test in: namespaces, the links between them, and what runs inside.

    with lab.Lab() as net:
        a, b = net.namespace(), net.namespace()
        net.veth(a, "eth0", b, "eth0", mtu=9000)
        a.address("eth0", "10.0.0.1/24", "fd00::1/64")
        b.address("eth0", "10.0.0.2/24", "fd00::2/64")
        with a:                                     # this thread, until the block ends
            client = socket.create_connection(("10.0.0.2", 80))
        ...                                         # the socket stays in a
        assert b.counters()["TcpInCsumErrors"] == 0

A namespace belongs to a thread on Linux. What is opened inside one (sockets, TUN devices) stays
in it, and threads and processes started inside begin in it. Namespaces have no name: descriptors
keep them, so nothing can be left behind. Links are there without duplicate address detection,
link-local addresses or router solicitations. Needs root: gate with `requirements.lacks_root()`.
"""

import ctypes
import ipaddress
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pyroute2 import IPRoute  # type: ignore[import-untyped]
from pyroute2.ethtool.ioctl import IoctlEthtool  # type: ignore[import-untyped]

from tests import namespaces

__all__ = ["Background", "Lab", "Namespace"]

T = TypeVar("T")

THIS_NETWORK = "/proc/thread-self/ns/net"
IFA_F_NODAD = 0x02  # include/uapi/linux/if_addr.h
IFF_UP = 0x0001  # include/uapi/linux/if.h
RTMGRP_LINK = 0x1  # include/uapi/linux/rtnetlink.h
RTMGRP_IPV6_ROUTE = 0x400
PATIENCE_S = 10.0
ROOT = Path(__file__).resolve().parents[1]

QUIET = {
    "ipv6/conf/{}/accept_dad": "0",
    "ipv6/conf/{}/addr_gen_mode": "1",  # no link-local address
    "ipv6/conf/{}/router_solicitations": "0",
    "ipv6/conf/{}/accept_ra": "0",
}

FEATURES = {  # the kernel's names, net/ethtool/common.c
    "gro": ("rx-gro",),
    "tso": (
        "tx-tcp-segmentation",
        "tx-tcp6-segmentation",
        "tx-tcp-ecn-segmentation",
        "tx-tcp-mangleid-segmentation",
    ),
    "uso": ("tx-udp-segmentation",),
    "gso": ("tx-generic-segmentation",),
    "checksum": ("tx-checksum-ip-generic",),
    "vlan": ("tx-vlan-hw-insert", "rx-vlan-hw-parse"),
}

_entered = threading.local()
_libc = ctypes.CDLL(None, use_errno=True)


def _enter(network: int) -> None:
    """setns(2) for the calling thread. (os.setns is there from Python 3.12 on.)"""
    if _libc.setns(network, namespaces.CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


class Namespace:
    """A network namespace. ``with namespace:`` moves the calling thread into it and back.

    Entering nests, also the same namespace, and several threads may be inside. Its methods work
    from outside as well as from inside.
    """

    def __init__(self, *, ipv6: bool = True) -> None:
        before = os.open(THIS_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
        try:
            namespaces.unshare(namespaces.CLONE_NEWNET)
            try:
                self._descriptor = os.open(THIS_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
            finally:
                _enter(before)
        finally:
            os.close(before)
        for kind in ("all", "default"):
            for key, value in QUIET.items():
                self.sysctl(key.format(kind), value)
            if not ipv6:
                self.sysctl(f"ipv6/conf/{kind}/disable_ipv6", "1")
        # Otherwise a loss in one connection shapes the next one to the same address.
        self.sysctl("ipv4/tcp_no_metrics_save", "1")
        self.up("lo")

    def __enter__(self) -> Self:
        stack = _entered.__dict__.setdefault("stack", [])
        stack.append(os.open(THIS_NETWORK, os.O_RDONLY | os.O_CLOEXEC))
        try:
            _enter(self._descriptor)
        except BaseException:
            os.close(stack.pop())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        before = _entered.stack.pop()
        try:
            _enter(before)
        finally:
            os.close(before)

    def close(self) -> None:
        """Let go of it. The kernel removes it when no thread, process or socket is left in it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def sysctl(self, key: str, value: str | int) -> None:
        """Write ``/proc/sys/net/KEY``, such as ``ipv4/ip_forward``."""
        with self:
            (Path("/proc/sys/net") / key).write_text(str(value), encoding="ascii")

    def sysfs(self, interface: str, attribute: str, value: str | int) -> None:
        """Write ``/sys/class/net/INTERFACE/ATTRIBUTE``, such as ``gro_flush_timeout``."""

        def write() -> None:  # in a mount namespace that ends with its thread
            namespaces.unshare(namespaces.CLONE_NEWNS)
            namespaces.mount(None, "/", None, namespaces.MS_REC | namespaces.MS_PRIVATE)
            namespaces.mount("sysfs", "/sys", "sysfs", 0)
            path = Path("/sys/class/net", interface, attribute)
            path.write_text(str(value), encoding="ascii")

        with self:
            Background(write).result()

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket of this namespace; the caller closes it."""
        with self:
            return socket.socket(family, kind, protocol)

    # --- interfaces ----------------------------------------------------------------------------

    def index(self, interface: str) -> int:
        """The interface's number. Raises OSError (ENODEV) where there is none."""
        with self:
            return socket.if_nametoindex(interface)

    def interfaces(self) -> list[str]:
        """The names of all interfaces."""
        with self:
            return [name for _index, name in socket.if_nameindex()]

    def mac(self, interface: str) -> bytes:
        """The interface's hardware address."""
        return bytes.fromhex(self._link(interface).get_attr("IFLA_ADDRESS").replace(":", ""))

    def mtu(self, interface: str, octets: int) -> None:
        """Set the largest packet, without the link header."""
        self._set(interface, mtu=octets)

    def queue_length(self, interface: str, packets: int) -> None:
        """Set how many packets may wait in the device to be sent; for TUN, to be read."""
        self._set(interface, txqlen=packets)

    def up(self, interface: str) -> None:
        """Set the interface up. Whether it can send is for `wait_for_carrier`."""
        self._set(interface, state="up")

    def down(self, interface: str) -> None:
        self._set(interface, state="down")

    def delete(self, interface: str) -> None:
        """Remove the interface; a veth's other end goes with it."""
        with self._netlink() as netlink:
            netlink.link("del", index=socket.if_nametoindex(interface))

    def move(self, interface: str, where: "Namespace") -> None:
        """Move the interface to another namespace, where it is down and without addresses."""
        self._set(interface, net_ns_fd=where._descriptor)

    def wait_for_carrier(self, interface: str) -> None:
        """Until the interface passes packets. The kernel may look as rarely as once a second."""
        with self, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as bell:
            bell.bind((0, RTMGRP_LINK))
            until = time.monotonic() + PATIENCE_S
            while self._link(interface).get_attr("IFLA_OPERSTATE") not in ("UP", "UNKNOWN"):
                if not select.select([bell], [], [], max(0, until - time.monotonic()))[0]:
                    raise TimeoutError(f"{interface} has no carrier after {PATIENCE_S} s")
                bell.recv(65536)

    def address(self, interface: str, *addresses: str) -> None:
        """Give the interface addresses, ``ADDRESS/LENGTH``: usable at once where it is up."""
        for text in addresses:
            address = ipaddress.ip_interface(text)
            with self._until_local(interface, address.ip), self._netlink() as netlink:
                netlink.addr(
                    "add",
                    index=socket.if_nametoindex(interface),
                    family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                    address=str(address.ip),
                    prefixlen=address.network.prefixlen,
                    **({} if address.version == 4 else {"flags": IFA_F_NODAD}),
                )

    @contextmanager
    def _until_local(
        self, interface: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address
    ) -> Iterator[None]:
        """Wait, when it is left, until the kernel takes packets to an address it was given.

        The route to an IPv6 address is made by one of its workers, once the interface is up.
        """
        if address.version == 4 or not self._link(interface)["flags"] & IFF_UP:
            yield
            return
        with self, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as bell:
            bell.bind((0, RTMGRP_IPV6_ROUTE))
            bell.settimeout(PATIENCE_S)
            yield
            wanted = f"{address.packed.hex()} 80 "
            while wanted not in Path("/proc/thread-self/net/ipv6_route").read_text("ascii"):
                bell.recv(65536)

    def route(self, destination: str, *, interface: str | None = None, via: str = "") -> None:
        """A route to ``NETWORK/LENGTH``, through an interface, a gateway or both."""
        with self._netlink() as netlink:
            found: dict[str, Any] = {"dst": destination}
            found["family"] = socket.AF_INET6 if ":" in destination else socket.AF_INET
            if via:
                found["gateway"] = via
            if interface is not None:
                found["oif"] = socket.if_nametoindex(interface)
            netlink.route("add", **found)

    def neighbour(self, interface: str, address: str, mac: bytes) -> None:
        """A permanent neighbour, where nobody would answer for it."""
        with self._netlink() as netlink:
            netlink.neigh(
                "add",
                ifindex=socket.if_nametoindex(interface),
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                dst=address,
                lladdr=mac.hex(":"),
                state="permanent",
            )

    def offloads(self, interface: str, **wanted: bool) -> None:
        """Switch features on or off by the names in `FEATURES`: ``gro=True, tso=False``.

        What the device does not have is left alone. Raises OSError where the kernel does not
        comply: segmentation, for one, needs ``checksum``.
        """
        named = {name: on for key, on in wanted.items() for name in FEATURES[key]}
        with self:
            device = IoctlEthtool(interface)
            try:
                features = device.get_features()
                named = {name: on for name, on in named.items() if features.is_available(name)}
                for name, on in named.items():
                    features[name] = on
                device.set_features(features)
                features = device.get_features()
            finally:
                device.close()
        refused = [name for name, on in named.items() if features.is_active(name) != on]
        if refused:
            raise OSError(f"{interface}: the kernel did not switch {', '.join(refused)}")

    def no_offloads(self, interface: str) -> None:
        """Have packets on this interface as they are on a wire, with complete checksums."""
        self.offloads(interface, gro=False, tso=False, uso=False, gso=False, checksum=False)

    # --- counters ------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """/proc/net/{snmp,netstat,snmp6} under nstat's names: TcpInCsumErrors, Ip6InReceives."""
        found: dict[str, int] = {}
        with self:
            base = Path("/proc/thread-self/net")  # /proc/net would be that of the main thread
            for file in ("snmp", "netstat"):
                lines = (base / file).read_text(encoding="ascii").splitlines()
                for heads, values in zip(lines[::2], lines[1::2], strict=True):
                    group, *names = heads.replace(":", "").split()
                    numbers = values.split()[1:]
                    pairs = zip(names, numbers, strict=True)
                    found |= {group + name: int(number) for name, number in pairs}
            for line in (base / "snmp6").read_text(encoding="ascii").splitlines():
                name, number = line.split()
                found[name] = int(number)
        return found

    def traffic(self, interface: str) -> dict[str, int]:
        """The interface's own counters (struct rtnl_link_stats64): rx_packets, tx_dropped, ..."""
        statistics: dict[str, int] = dict(self._link(interface).get_attr("IFLA_STATS64"))
        return statistics

    # --- netlink -------------------------------------------------------------------------------

    @contextmanager
    def _netlink(self) -> Iterator[Any]:
        """Inside the namespace, with a netlink socket for this use: pyroute2 would open another
        for each thread that uses one, wherever that thread is."""
        with self, IPRoute() as netlink:
            yield netlink

    def _link(self, interface: str) -> Any:
        with self._netlink() as netlink:
            (link,) = netlink.get_links(socket.if_nametoindex(interface))
            return link

    def _set(self, interface: str, **what: Any) -> None:
        with self._netlink() as netlink:
            netlink.link("set", index=socket.if_nametoindex(interface), **what)


class Background(Generic[T]):
    """A function that runs in a thread of its own, in the namespace in which it was started."""

    def __init__(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> None:
        self._call = function, arguments, keywords
        self._returned: list[T] = []
        self._error: BaseException | None = None
        self._taken = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def result(self, timeout: float = PATIENCE_S) -> T:
        """What the function returned or raised. Raises TimeoutError while it runs."""
        self.thread.join(timeout)
        if self.thread.is_alive():
            raise TimeoutError(f"{self._call[0]} still runs after {timeout} s")
        self._taken = True
        if self._error is not None:
            raise self._error
        return self._returned[0]

    def finish(self) -> None:
        """Wait for the end, and raise what the function raised unless `result` did."""
        if self.thread.is_alive() or not self._taken:
            self.result()

    def _run(self) -> None:
        function, arguments, keywords = self._call
        try:
            self._returned.append(function(*arguments, **keywords))
        except BaseException as error:
            self._error = error


class Lab:
    """Namespaces, and what is in them; everything is gone when it is left, whatever happened.

    Leaving it kills its processes, waits for its threads (whose functions the test has to end,
    and whose exceptions it raises if nobody took them), and lets go of the namespaces.
    """

    def __init__(self) -> None:
        self._namespaces = ExitStack()
        self._threads: list[Background[Any]] = []
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._namespaces, ExitStack() as ending:
            for background in self._threads:
                ending.callback(background.finish)
            for child in self._children:
                ending.callback(_end, child)

    def namespace(self, *, ipv6: bool = True) -> Namespace:
        """A new one, with only lo, which is up. Without ``ipv6`` its devices say nothing."""
        made = Namespace(ipv6=ipv6)
        self._namespaces.callback(made.close)
        return made

    def veth(
        self,
        near: Namespace,
        near_name: str,
        far: Namespace,
        far_name: str,
        *,
        mtu: int = 1500,
        up: bool = True,
    ) -> None:
        """Two interfaces joined by a cable, both with the kernel's default offloads (GRO off).

        With ``up`` they are set up, and their carrier is waited for.
        """
        with near._netlink() as netlink:
            peer = {"ifname": far_name, "net_ns_fd": far._descriptor, "mtu": mtu}
            netlink.link("add", ifname=near_name, kind="veth", mtu=mtu, peer=peer)
        if up:
            ends = ((near, near_name), (far, far_name))
            for namespace, name in ends:
                namespace.up(name)
            for namespace, name in ends:
                namespace.wait_for_carrier(name)

    def start(
        self, namespace: Namespace, module: str, *arguments: object, **options: Any
    ) -> subprocess.Popen[str]:
        """``python -m MODULE ARGUMENTS`` inside a namespace, killed when the lab is left.

        ``options`` are those of Popen. The module's main should call
        `namespaces.die_with_parent`, for a test that is itself killed.
        """
        with namespace:
            child = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                **{"cwd": ROOT, "stdin": subprocess.DEVNULL, "text": True, **options},
            )
        self._children.append(child)
        return child

    def end(self, child: subprocess.Popen[str]) -> int:
        """Wait for a process to end by itself, and forget it; its exit status."""
        status = child.wait(PATIENCE_S)
        self._children.remove(child)
        _end(child)
        return status

    def thread(
        self, namespace: Namespace, function: Callable[..., T], *arguments: Any, **keywords: Any
    ) -> Background[T]:
        """Run a function in a thread inside a namespace, waited for when the lab is left."""
        with namespace:
            background = Background(function, *arguments, **keywords)
        self._threads.append(background)
        return background


def _end(child: subprocess.Popen[str]) -> None:
    with child:  # closes its pipes and waits
        child.kill()
