"""Network namespaces and the links between them, removed again whatever happens.

Everything is done over rtnetlink and ioctl by pyroute2. Nothing outside the new namespaces is
touched, and no program is run. Needs root.
"""

import fcntl
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyroute2 import IPRoute, netns  # type: ignore[import-untyped]
from pyroute2.ethtool.ioctl import IoctlEthtool  # type: ignore[import-untyped]

__all__ = ["Lab", "Namespace", "Tun"]

TUNSETIFF = 0x400454CA  # include/uapi/linux/if_tun.h
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000

IFA_F_TENTATIVE = 0x40  # include/uapi/linux/if_addr.h
READY_SECONDS = 10.0

QUIET_IPV6 = {
    # No duplicate address detection, link-local address or router solicitation: what a capture
    # holds beside the recorded traffic is then only what that traffic needs.
    "accept_dad": "0",
    "addr_gen_mode": "1",
    "router_solicitations": "0",
    "accept_ra": "0",
}

_ENTERING = threading.RLock()  # pushns and popns share one stack between all threads


class Namespace:
    """One network namespace. Sockets made while it is entered stay in it for good."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.name = name
        netns.create(name)
        stack.callback(netns.remove, name)
        self.netlink: Any = stack.enter_context(IPRoute(netns=name))
        for kind in ("all", "default"):
            for key, value in QUIET_IPV6.items():
                self.sysctl(f"ipv6/conf/{kind}/{key}", value)
        # Otherwise a loss in one connection shapes the next one to the same address.
        self.sysctl("ipv4/tcp_no_metrics_save", "1")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread into the namespace, and back. One thread at a time."""
        with _ENTERING:
            netns.pushns(self.name)
            try:
                yield
            finally:
                netns.popns()

    def sysctl(self, key: str, value: str) -> None:
        """Write `/proc/sys/net/KEY` of this namespace."""
        with self.entered():
            (Path("/proc/sys/net") / key).write_text(value)

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        with self.entered():
            return socket.socket(family, kind, protocol)

    def index(self, interface: str) -> int:
        index: int = self.netlink.link_lookup(ifname=interface)[0]
        return index

    def indices(self) -> dict[str, int]:
        """Every interface's name and its index."""
        with self.entered():
            return {name: index for index, name in socket.if_nameindex()}

    def bring_up(self, interface: str, addresses: tuple[str, ...]) -> None:
        """Give an interface its addresses (`ADDRESS/LENGTH`) and set it up."""
        index = self.index(interface)
        for text in addresses:
            address = ipaddress.ip_interface(text)
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            self.netlink.addr(
                "add",
                index=index,
                family=family,
                address=str(address.ip),
                prefixlen=address.network.prefixlen,
            )
        self.netlink.link("set", index=index, state="up")

    def wait_until_ready(self, interface: str) -> None:
        """Wait for the carrier and for the addresses: before, neighbours are not answered.

        The kernel may look at a link's carrier as rarely as once a second.
        """
        index = self.index(interface)
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            (link,) = self.netlink.get_links(index)
            flags = [
                address.get_attr("IFA_FLAGS")
                for address in self.netlink.get_addr(family=socket.AF_INET6, index=index)
            ]
            ready = link.get_attr("IFLA_OPERSTATE") in ("UP", "UNKNOWN")
            if ready and not any(flag & IFA_F_TENTATIVE for flag in flags):
                return
            time.sleep(0.01)
        raise TimeoutError(f"{interface} of {self.name} is not ready after {READY_SECONDS} s")

    def switch_offloads_off(self, interface: str, *, keep_transmit_checksum: bool = False) -> None:
        """Make the kernel cut and checksum in software, before the frames reach the device.

        Generic segmentation and receive offload count as offloads here, so that a capture holds
        packets as they are on a wire. With `keep_transmit_checksum` the transport checksum is
        left to the device: a capture taken there holds the pseudo-header sum in its place.
        """
        with self.entered():
            device = IoctlEthtool(interface)
            features = device.get_features()
            for name, *_state in features:
                if keep_transmit_checksum and name == "tx-checksum-ip-generic":
                    continue
                if name.startswith(("tx-", "rx-")) and features.is_available(name):
                    features[name] = False
            device.set_features(features)
            features = device.get_features()
            still_on = [
                name
                for name in ("tx-generic-segmentation", "tx-tcp-segmentation", "rx-gro")
                if features.is_active(name)
            ]
            device.close()
        if still_on:
            raise OSError(f"{interface}: these offloads cannot be switched off: {still_on}")


class Tun:
    """A TUN device whose packets this process carries: one end of a `cable.Cable`."""

    def __init__(self, namespace: Namespace, interface: str) -> None:
        with namespace.entered():
            self._descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            request = struct.pack("16sH22x", interface.encode(), IFF_TUN | IFF_NO_PI)
            fcntl.ioctl(self._descriptor, TUNSETIFF, request)

    def fileno(self) -> int:
        return self._descriptor

    def receive(self) -> bytes | None:
        """The next packet, from its IP header on; None when there is none."""
        try:
            return os.read(self._descriptor, 65536)
        except BlockingIOError:
            return None

    def send(self, packet: bytes) -> None:
        os.write(self._descriptor, packet)

    def close(self) -> None:
        os.close(self._descriptor)


class Lab:
    """Namespaces, links and whatever else one recording needs, all gone when it is left."""

    _made = 0

    def __init__(self) -> None:
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stack.close()

    def namespace(self, role: str) -> Namespace:
        Lab._made += 1
        return Namespace(f"gro-pcaps-{os.getpid()}-{Lab._made}-{role}", self.stack)

    def veth(
        self,
        near: tuple[Namespace, str],
        far: tuple[Namespace, str],
        *,
        mtu: int,
        near_mac: str,
        far_mac: str,
        near_transmit_checksum: bool = False,
    ) -> None:
        """A pair of virtual Ethernet devices without offloads."""
        near[0].netlink.link(
            "add",
            ifname=near[1],
            kind="veth",
            mtu=mtu,
            address=near_mac,
            peer={
                "ifname": far[1],
                "net_ns_fd": far[0].name,
                "mtu": mtu,
                "address": far_mac,
            },
        )
        near[0].switch_offloads_off(near[1], keep_transmit_checksum=near_transmit_checksum)
        far[0].switch_offloads_off(far[1])
