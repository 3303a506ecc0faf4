"""FileOrder: packets of several interfaces, delivered engine by engine, in the file's order again.

Each interface has an engine of its own, and with time windows the flushes of one overtake those
of another. A packet's place is that of its first record. Engines do not say which record that
was, but within a flow packets are delivered in order, so counting finds it.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from netstack_gro.capture import Record
from netstack_gro.identity import identify
from netstack_gro.packet import Packet

__all__ = ["FileOrder"]


class FileOrder:
    """Stands between the engines of a capture and a sink, which gets packets in the file's order.

    Tell `read` of each record before it is dispatched, give each flush to `deliver`, and call
    `release` when a dispatch is done. What has to wait is detached and kept: at most what the
    file holds from the earliest undelivered record on, which the dispatcher bounds. As long as
    one interface alone has records waiting, packets go straight to the sink.
    """

    __slots__ = ("_heap", "_pushed", "_sink", "_waiting")

    def __init__(self, sink: Callable[[list[Packet]], object]) -> None:
        self._sink = sink
        self._waiting: dict[int, list[Record]] = {}
        # By record number; the second number only keeps packets from being compared.
        self._heap: list[tuple[int, int, Packet]] = []
        self._pushed = 0

    def read(self, record: Record) -> None:
        """A record is about to be put in the batch of its interface."""
        records = self._waiting.get(record.interface)
        if records is None:
            self._waiting[record.interface] = [record]
        else:
            records.append(record)

    def deliver(self, packets: list[Packet]) -> None:
        """Take one flush: all that waited of one interface."""
        records = self._waiting.pop(packets[0].interface, [])
        if not self._heap and not self._waiting:
            self._sink(packets)
            return
        link = packets[0].link
        numbers: dict[bytes, deque[int]] = {}
        for record in records:
            flow = identify(record.data, link).flow
            numbers.setdefault(flow, deque()).append(record.number)
        number = 0
        for packet in packets:
            packet.detach()
            of_flow = numbers.get(identify(bytes(packet), link).flow)
            for position in range(packet.packets):
                if of_flow:
                    taken = of_flow.popleft()
                    number = number if position else taken
            heappush(self._heap, (number, self._pushed, packet))
            self._pushed += 1

    def release(self, held_from: int | None) -> None:
        """Give the sink what precedes record ``held_from``, the earliest not delivered; or all."""
        packets = []
        while self._heap and (held_from is None or self._heap[0][0] < held_from):
            packets.append(heappop(self._heap)[2])
        if packets:
            self._sink(packets)
