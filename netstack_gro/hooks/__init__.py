"""Where super-packets go: sinks that stand behind an engine."""

from netstack_gro.hooks.capture_file import CaptureFileSink

__all__ = ["CaptureFileSink"]
