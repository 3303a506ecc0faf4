"""The demo's traffic: what merges well, and a little of everything that does not.

Big transfers and trains run side by side, so that their packets interleave as on a real line.
"""

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

from pcaps.recorder.traffic import Side, bulk, datagrams, requests, text, trains

__all__ = ["run"]

V4, V6 = socket.AF_INET, socket.AF_INET6
KIB = 1024

IP_OPTIONS = 4  # include/uapi/linux/in.h
NO_OPERATION_AND_END = bytes((1, 1, 1, 0))  # RFC 791, section 3.1
SO_NO_CHECK = 11  # include/uapi/asm-generic/socket.h
VXLAN_PORT = 4789  # RFC 7348
CLOSED_PORT = 5999


def run(left: Side, right: Side) -> None:
    """Raises `TrafficLostError` or an OSError when anything did not come in as it was sent."""
    datagrams(left, right, V4, (200, 200, 200), port=VXLAN_PORT, source=44001)
    with ThreadPoolExecutor(6) as together:
        running = [
            together.submit(bulk, left, right, V4, 96 * KIB, source=40001),
            together.submit(bulk, left, right, V6, 96 * KIB, port=5011, source=40002),
            together.submit(trains, left, right, V4, ((40 * 1200 + 300, 1200),) * 2),
            together.submit(
                trains, left, right, V6, ((30 * 1000 + 40, 1000),), port=5014, source=43002
            ),
            together.submit(requests, left, right, V4, 12),
        ]
        for one in running:
            one.result()
    _refused_by_rule(left, right)
    _urgent_and_reset(left, right)
    _unreachable(left, right)


def _refused_by_rule(left: Side, right: Side) -> None:
    no_checksum = (socket.SOL_SOCKET, SO_NO_CHECK, 1)
    options = (socket.IPPROTO_IP, IP_OPTIONS, NO_OPERATION_AND_END)
    datagrams(left, right, V4, (300, 300), port=5020, source=44002, options=(no_checksum,))
    datagrams(left, right, V4, (300, 300), port=5021, source=44003, options=(options,))
    datagrams(left, right, V4, (0, 4000), port=5022, source=44004)
    datagrams(left, right, V6, (0, 4000), port=5023, source=44005)


def _urgent_and_reset(left: Side, right: Side) -> None:
    """A connection with out-of-band data, which its client then aborts."""
    with (
        right.open_socket(V4, socket.SOCK_STREAM, 5024) as listener,
        left.open_socket(V4, socket.SOCK_STREAM, 45001) as client,
    ):
        listener.listen()
        client.connect(right.address(V4, 5024))
        server, _peer = listener.accept()
        with server:
            client.sendall(text("before", 3000))
            client.send(b"!", socket.MSG_OOB)
            client.sendall(text("behind", 3000))
            time.sleep(0.05)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            time.sleep(0.05)


def _unreachable(left: Side, right: Side) -> None:
    """A datagram to a port where nobody listens, answered by ICMP."""
    with left.open_socket(V4, socket.SOCK_DGRAM, 44006) as sender:
        sender.connect(right.address(V4, CLOSED_PORT))
        sender.send(b"is anybody there?")
        try:
            sender.recv(1)
        except ConnectionRefusedError:
            return
    raise OSError("a closed UDP port did not answer")
