"""Where super-packets go: sinks that stand behind an engine."""

from netstack_gro.hooks.capture_file import CaptureFileSink
from netstack_gro.hooks.pieces import head_and_rest
from netstack_gro.hooks.tun import TunWriter, TunWriterStats
from netstack_gro.hooks.udp import UdpSenderStats, UdpTrainSender

__all__ = [
    "CaptureFileSink",
    "TunWriter",
    "TunWriterStats",
    "UdpSenderStats",
    "UdpTrainSender",
    "head_and_rest",
]
