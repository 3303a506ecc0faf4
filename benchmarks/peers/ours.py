"""Our engine: one `Batch`, filled beforehand, dispatched into a hook that takes the list.

Modes are ``trusted`` and ``verified``, each over ``ip`` or ``ethernet``, as in
``trusted ethernet``. Counted are the engine, its `Packet` objects and the call of the hook.
"""

from benchmarks.batches import batch_of, ignore
from netstack_gro import GroConfig, GroDispatcher, Packet

from .serve import Ready, serve

ETHERNET = {
    4: bytes.fromhex("0200000000010200000000020800"),
    6: bytes.fromhex("02000000000102000000000286dd"),
}


def payload_of(packet: Packet, link: int) -> int:
    """Bytes of TCP payload, by the packet's own header."""
    data = bytes(packet)
    network = 20 if data[link] >> 4 == 4 else 40
    return len(data) - link - network - (data[link + network + 12] >> 4) * 4


def prepare(packets: list[bytes], mode: str) -> Ready:
    """An engine for ``mode`` with the packets in a batch."""
    checksums, link = mode.split()
    if link == "ethernet":
        packets = [ETHERNET[packet[0] >> 4] + packet for packet in packets]
    config = GroConfig(
        link="ethernet" if link == "ethernet" else "ip",
        received_checksums="trust" if checksums == "trusted" else "verify",
    )
    batch = batch_of(packets)
    engine = GroDispatcher(ignore, config)

    def outcome() -> tuple[int, int]:
        sizes: list[int] = []
        skip = len(ETHERNET[4]) if link == "ethernet" else 0
        with GroDispatcher(
            lambda found: sizes.extend(payload_of(packet, skip) for packet in found), config
        ) as counting:
            counting.dispatch(batch)
        return len(sizes), sum(sizes)

    return Ready(lambda: engine.dispatch(batch), outcome)


if __name__ == "__main__":
    serve(prepare)
