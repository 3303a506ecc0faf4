"""Capture files, pcap and pcapng, read and written with the standard library alone.

    with open_capture("trace.pcapng.gz") as capture:
        for record in capture:
            print(record.number, record.timestamp_ns, len(record.data))

A capture is hostile input: every length in it is checked, and whatever its bytes, reading ends
in records, in warnings or in one of the CaptureError classes of `netstack_gro.errors`.
"""

from netstack_gro.capture.links import LINK_NAMES, link_name
from netstack_gro.capture.reader import CaptureReader, open_capture
from netstack_gro.capture.records import Interface, Record
from netstack_gro.capture.writer import PcapngWriter, PcapWriter

__all__ = [
    "LINK_NAMES",
    "CaptureReader",
    "Interface",
    "PcapWriter",
    "PcapngWriter",
    "Record",
    "link_name",
    "open_capture",
]
