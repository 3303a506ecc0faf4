"""Where packets come from: each dispatcher reads batches from one kind of source.

Imported as ``netstack_gro.dispatchers``. All of them keep the contract of
`netstack_gro.dispatchers.base.Source`; those that read packets have an engine as well.

==============================  =================================================================
`CaptureDispatcher`             capture files
`RecvMmsgDispatcher`            an interface through a packet socket, or a socket of packets
`PacketRingDispatcher`          an interface through a memory-mapped ring
`ReadvDispatcher`               any descriptor that gives a packet per read
`TunDispatcher`                 a TUN or TAP device, a queue each
`UdpDispatcher`                 a UDP socket, whose trains the kernel has merged
==============================  =================================================================

All but the first need Linux; making one elsewhere raises UnsupportedError. In an asyncio event
loop they are served by `netstack_gro.dispatchers.aio.serve`.
"""

from netstack_gro.dispatchers.addresses import PacketInfo
from netstack_gro.dispatchers.base import Dispatcher, DispatcherStats, Source
from netstack_gro.dispatchers.capture import CaptureDispatcher, CaptureStats
from netstack_gro.dispatchers.datagrams import DatagramLike
from netstack_gro.dispatchers.packet_socket import FanoutGroup, PacketSocket, open_packet_socket
from netstack_gro.dispatchers.readv import ReadvDispatcher
from netstack_gro.dispatchers.recvmmsg import RecvMmsgDispatcher
from netstack_gro.dispatchers.ring import PacketRingDispatcher, RingStats
from netstack_gro.dispatchers.slab import LiveStats
from netstack_gro.dispatchers.trains import Datagram, Train
from netstack_gro.dispatchers.tun import TunDispatcher
from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads
from netstack_gro.dispatchers.udp import UdpDispatcher, UdpStats
from netstack_gro.dispatchers.udp_socket import ReceiveOptions, Support

__all__ = [
    "CaptureDispatcher",
    "CaptureStats",
    "Datagram",
    "DatagramLike",
    "Dispatcher",
    "DispatcherStats",
    "FanoutGroup",
    "LiveStats",
    "PacketInfo",
    "PacketRingDispatcher",
    "PacketSocket",
    "ReadvDispatcher",
    "ReceiveOptions",
    "RecvMmsgDispatcher",
    "RingStats",
    "Source",
    "Support",
    "Train",
    "TunDevice",
    "TunDispatcher",
    "TunOffloads",
    "UdpDispatcher",
    "UdpStats",
    "open_packet_socket",
]
