"""A script for any environment that has the package: merges two segments, names the engine."""

import struct

import netstack_gro


def segment(identification: int, sequence: int) -> bytes:
    """A TCP segment of 100 bytes over IPv4 with right checksums, built from nothing."""
    payload = bytes(range(100))
    addresses = bytes([192, 0, 2, 1, 192, 0, 2, 2])
    tcp = struct.pack("!HHIIBBHHH", 1, 2, sequence, 7, 5 << 4, 0x10, 512, 0, 0) + payload
    pseudo = addresses + struct.pack("!HH", 6, len(tcp))
    tcp = tcp[:16] + checksum(pseudo + tcp) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), identification, 0x4000, 64, 6, 0)
    return ip[:10] + checksum(ip + addresses) + addresses + tcp


def checksum(data: bytes) -> bytes:
    """RFC 1071, of an even number of bytes that are not all zero."""
    return (0xFFFF - (int.from_bytes(data, "big") % 0xFFFF or 0xFFFF)).to_bytes(2, "big")


def main() -> None:
    sent = [segment(8, 1000), segment(9, 1100)]
    delivered: list[tuple[int, int, list[bytes]]] = []

    def hook(packets: list[netstack_gro.Packet]) -> None:
        delivered.extend((p.packets, len(p), list(p.segments())) for p in packets)

    with netstack_gro.GroDispatcher(hook) as gro:
        taken = gro.dispatch(sent)
    if taken != 2 or delivered != [(2, 240, sent)]:
        raise SystemExit(f"two segments were not merged into one: {delivered}")
    print("compiled" if netstack_gro.__compiled__ else "interpreted")


if __name__ == "__main__":
    main()
