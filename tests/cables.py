"""A cable between two namespaces: frames sent at its far end, to be read at its near end."""

import socket
from types import TracebackType
from typing import Any, Self

from netstack_gro.virtio import VirtioHeader
from tests import builders, lab

SOL_PACKET = 263  # include/linux/socket.h
PACKET_VNET_HDR = 15  # include/uapi/linux/if_packet.h


class Cable:
    """A veth from ``near`` to ``far``, both called eth0, on which nobody else says anything."""

    def __init__(self, net: lab.Lab, *, mtu: int = 1500) -> None:
        self.near = net.namespace(ipv6=False)
        self.far = net.namespace(ipv6=False)
        net.veth(self.near, "eth0", self.far, "eth0", mtu=mtu)
        self.mac = self.near.mac("eth0")
        self.sender = self.raw(self.far)
        self._describing = self.raw(self.far)
        self._describing.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)

    def raw(self, namespace: lab.Namespace) -> socket.socket:
        """A packet socket that sends frames and receives none."""
        sender = namespace.socket(socket.AF_PACKET, socket.SOCK_RAW)
        with namespace:
            sender.bind(("eth0", 0))
        return sender

    def send_described(self, frame: bytes, header: VirtioHeader) -> None:
        """Send a frame whose checksum or segmentation is still to be done, as ``header`` says."""
        self._describing.send(header.encode() + frame)

    def frame(self, payload: bytes, **fields: Any) -> bytes:
        """A frame for the near end, with a UDP datagram; ``fields`` are `builders.ethernet`'s."""
        fields = {"destination": self.mac} | fields
        return builders.ethernet(builders.udp4(payload), **fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.sender.close()
        self._describing.close()
