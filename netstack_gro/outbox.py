"""Outbox: the results of a batch as packets for the hook, counted, and taken back afterwards."""

from netstack_gro import codes, records
from netstack_gro.delivery import Delivery
from netstack_gro.packet import Packet, make_packet
from netstack_gro.stats import Stats
from netstack_gro.verdicts import CloseReason, Verdict

VERDICTS = len(Verdict)
REASONS = len(CloseReason)


class Outbox:
    """Packets that are used again for every flush, and the counters of all flushes.

    A packet is reused as long as nobody but the outbox refers to it once the hook has returned.
    """

    __slots__ = (
        "_batches",
        "_bytes_in",
        "_bytes_out",
        "_delivery",
        "_free",
        "_packets_in",
        "_packets_out",
        "_reasons",
        "_segments",
        "_super_packets",
        "_verdicts",
    )

    _batches: int
    _bytes_in: int
    _bytes_out: int
    _delivery: Delivery
    _free: list[Packet]
    _packets_in: int
    _packets_out: int
    _reasons: list[int]
    _segments: int
    _super_packets: int
    _verdicts: list[int]

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._free = self._unused()
        self._verdicts = records.counters(VERDICTS)
        self._reasons = records.counters(REASONS)
        self._batches = 0
        self._packets_in = 0
        self._packets_out = 0
        self._bytes_in = 0
        self._bytes_out = 0
        self._super_packets = 0
        self._segments = 0

    def _unused(self) -> list[Packet]:
        """As many packets as a flush may have."""
        return [make_packet(self._delivery) for _ in range(self._delivery.capacity)]

    def __dealloc__(self) -> None:
        records.release(self._verdicts)
        records.release(self._reasons)

    def pack(self, out: list[int], count: int) -> list[Packet]:
        """The packets that begin at the ``count`` slots of ``out``, in that order."""
        delivery = self._delivery
        free = self._free
        packets = free[:count]  # the one allocation; what follows cannot fail half-way
        inputs = 0
        bytes_in = 0
        bytes_out = 0
        for position in range(count):
            index = out[position]
            slot = records.slot_at(delivery.slots, index)
            packet = free[position]
            packet._index = index
            packet._space = -1
            packet._completed = False
            packet._lent = True
            if slot.head >= 0:
                head = records.head_at(delivery.heads, slot.head)
                if not head.closed:
                    head.closed = (
                        codes.CLOSED_BATCH_END
                        if head.barrier == delivery.barrier
                        else codes.CLOSED_BARRIER
                    )
                self._reasons[head.closed] += 1
                self._verdicts[slot.verdict] += head.count
                inputs += head.count
                if head.count > 1:
                    self._super_packets += 1
                    self._segments += head.count
                    bytes_in += head.count * head.header_length + head.payload
                    bytes_out += head.header_length + head.payload
                    packet._space = delivery.write_header(index)
                    packet._header_length = head.header_length
                    continue
            else:
                self._verdicts[slot.verdict] += 1
                inputs += 1
            bytes_in += slot.length
            bytes_out += slot.length
            if slot.checksum == codes.PARTIAL and not delivery.partial:
                self._complete(packet, index)
        self._packets_in += inputs
        self._packets_out += count
        self._bytes_in += bytes_in
        self._bytes_out += bytes_out
        self._batches += 1
        return packets

    def _complete(self, packet: Packet, index: int) -> int:
        """Complete the partial checksum of a lone packet, where that is possible."""
        delivery = self._delivery
        place = delivery.complete(index)
        if place >= 0:
            packet._space = place
            packet._header_length = delivery.parsed.header_length
            packet._completed = True
        return 0

    def take_back(self, count: int) -> int:
        """Release the packets of a flush; one that the hook kept has its facts written down."""
        free = self._free
        try:
            for position in range(count):
                packet = free[position]
                # Beyond the list's reference and this one; or detached, and then let go of.
                if records.kept(packet, 2) or not packet._lent:
                    if packet._lent:
                        packet._settle()
                    free[position] = make_packet(self._delivery)
                packet._lent = False
        except BaseException:
            # Without the memory to write facts down, a kept packet is released all the same.
            for packet in self._free:
                packet._lent = False
            self._free = [make_packet(self._delivery) for _ in range(self._delivery.capacity)]
            raise
        return 0

    def stats(self) -> Stats:
        """A snapshot of the counters."""
        return Stats(
            batches=self._batches,
            packets_in=self._packets_in,
            bytes_in=self._bytes_in,
            packets_out=self._packets_out,
            bytes_out=self._bytes_out,
            super_packets=self._super_packets,
            segments=self._segments,
            pinned=self._delivery.pool.replaced,
            verdicts={verdict: self._verdicts[verdict] for verdict in Verdict},
            closed={
                reason: self._reasons[reason]
                for reason in CloseReason
                if reason is not CloseReason.NOT_HELD
            },
        )
