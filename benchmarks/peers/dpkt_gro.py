"""What a user of Python would write with dpkt: parse, and merge in a dictionary of flows.

It keeps our rules: only equal headers and consecutive segments merge, no segment after a shorter
one, a PSH or a FIN, and whatever cannot merge closes its flow. The result is one dpkt packet for
each super-packet, with payloads joined and length set; its checksums are not computed again.
Modes are ``trusted`` and ``verified``.
"""

import struct
from dataclasses import dataclass
from typing import Any

import dpkt

from .serve import Ready, serve

MAX_IP_LENGTH = 65535
TCP = dpkt.ip.IP_PROTO_TCP
FIN_PSH = dpkt.tcp.TH_FIN | dpkt.tcp.TH_PUSH
MERGEABLE = dpkt.tcp.TH_ACK | FIN_PSH


@dataclass(slots=True)
class Head:
    """An open super-packet. ``like``: what segments must share; ``step``: of the IP ID."""

    ip: Any
    parts: list[bytes]
    like: tuple[Any, ...]
    next_sequence: int
    size: int
    room: int
    step: int | None = None


def right(ip: Any, data: bytes) -> bool:
    """Whether the checksums of IPv4 header and TCP segment are right."""
    if ip.v == 4:
        if dpkt.in_cksum(data[:20]):
            return False
        segment = data[20:]
    else:
        segment = data[40:]
    pseudo = ip.src + ip.dst + struct.pack("!II", len(segment), TCP)
    return not dpkt.in_cksum(pseudo + segment)


def header_of(ip: Any, data: bytes) -> tuple[Any, ...] | None:
    """What must be equal for a merge in the IP header; None where nothing may merge."""
    if ip.v == 4:
        if data[0] != 0x45 or ip.len != len(data) or ip.mf or ip.offset or ip.rf:
            return None
        return 4, ip.tos, ip.ttl, ip.df
    if ip.nxt != TCP or ip.plen + 40 != len(data):
        return None
    return 6, ip.fc, ip.flow, ip.hlim


def merge(packets: list[bytes], *, verify: bool) -> list[Any]:
    """The packets of one batch, merged; each is a dpkt packet, in order of its first segment."""
    results: list[Any] = []
    heads: dict[tuple[Any, ...], Head] = {}
    closed: list[Head] = []
    for data in packets:
        ip = dpkt.ip.IP(data) if data[0] >> 4 == 4 else dpkt.ip6.IP6(data)
        tcp = ip.data
        if not isinstance(tcp, dpkt.tcp.TCP):
            results.append(ip)
            continue
        flow = (ip.src, ip.dst, tcp.sport, tcp.dport)
        head = heads.get(flow)
        header = header_of(ip, data)
        payload = tcp.data
        flags = tcp.flags
        if (
            header is None
            or not payload
            or flags & ~MERGEABLE
            or not flags & dpkt.tcp.TH_ACK
            or (verify and not right(ip, data))
        ):
            if head is not None:
                closed.append(heads.pop(flow))
            results.append(ip)
            continue
        like = (header, tcp.ack, tcp.win, tcp.off, tcp.urp, tcp.opts)
        size = len(payload)
        if (
            head is not None
            and tcp.seq == head.next_sequence
            and like == head.like
            and size <= head.size
            and size <= head.room
            and steps(head, ip)
        ):
            head.parts.append(payload)
            head.next_sequence = (head.next_sequence + size) & 0xFFFFFFFF
            head.room -= size
            head.ip.data.flags |= flags & FIN_PSH
        else:
            if head is not None:
                closed.append(head)
            results.append(ip)
            head = heads[flow] = Head(
                ip,
                [payload],
                like,
                (tcp.seq + size) & 0xFFFFFFFF,
                size,
                MAX_IP_LENGTH - len(data),
            )
        if flags & FIN_PSH or size < head.size:
            closed.append(heads.pop(flow))
    for head in (*closed, *heads.values()):
        finish(head)
    return results


def steps(head: Head, ip: Any) -> bool:
    """Whether the IPv4 ID goes on as the head's do: all equal, or each one more."""
    if ip.v != 4:
        return True
    behind: int = (ip.id - head.ip.id) & 0xFFFF
    if head.step is None:
        if behind > 1:
            return False
        head.step = behind
        return True
    return behind == (head.step * len(head.parts)) & 0xFFFF


def finish(head: Head) -> None:
    """Join the payloads of a super-packet."""
    if len(head.parts) == 1:
        return
    ip = head.ip
    more = sum(map(len, head.parts[1:]))
    ip.data.data = b"".join(head.parts)
    if ip.v == 4:
        ip.len += more
    else:
        ip.plen += more


def prepare(packets: list[bytes], mode: str) -> Ready:
    """The merge for ``mode``."""
    verify = mode == "verified"

    def outcome() -> tuple[int, int]:
        results = merge(packets, verify=verify)
        return len(results), sum(len(ip.data.data) for ip in results)

    return Ready(lambda: merge(packets, verify=verify), outcome)


if __name__ == "__main__":
    serve(prepare)
