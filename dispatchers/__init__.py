"""Where packets come from: each dispatcher reads batches from one kind of source.

Imported as ``netstack_gro.dispatchers``. All of them keep the contract of
`netstack_gro.dispatchers.base.Dispatcher`.
"""

from netstack_gro.dispatchers.base import Dispatcher, DispatcherStats
from netstack_gro.dispatchers.capture import CaptureDispatcher, CaptureStats

__all__ = ["CaptureDispatcher", "CaptureStats", "Dispatcher", "DispatcherStats"]
