"""Sealing and opening datagrams: keys that no two sessions share, counters, and a replay window.

Both ends know a secret. Each begins with 32 random bytes of its own, which it tells the other in a
hello; the keys of a session come from the secret and the bytes of both, so that no key sees a
counter twice, whoever was started anew. A session begins with a hello that repeats one's own
bytes: an old hello, played again, does nothing.

    hello   0, nonce (12), sealed with the secret's own key: my bytes (32), yours or zeros (32)
    data    1, counter (8, little-endian), sealed with the session's key: an IP packet

Sealing is ChaCha20-Poly1305 (RFC 8439), of which the first byte and the counter are the additional
data. There is no rekeying, no forward secrecy, and nobody's identity: this is an example.
"""

import os
from collections.abc import Iterable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

HELLO, DATA = b"\x00", b"\x01"
HELLO_SIZE = 1 + 12 + 64 + 16
OVERHEAD = 1 + 8 + 16  # bytes that sealing adds to an IP packet
WINDOW = 2048  # counters behind the newest that may still come
NOBODY = bytes(32)


def derived(secret: bytes, salt: bytes, length: int) -> bytes:
    """Key material (RFC 5869)."""
    return HKDF(SHA256(), length, salt, b"netstack-gro example VPN 1").derive(secret)


class Window:
    """Which of the last counters have come (RFC 4303 section 3.4.3)."""

    def __init__(self) -> None:
        self._newest = -1
        self._seen = 0  # bit n: the counter n behind the newest

    def is_new(self, counter: int) -> bool:
        """Whether it has not come, and is not too old to tell."""
        behind = self._newest - counter
        return behind < 0 or (behind < WINDOW and not self._seen >> behind & 1)

    def note(self, counter: int) -> None:
        """It has come, and is genuine."""
        ahead = counter - self._newest
        if ahead > 0:
            self._seen = (self._seen << min(ahead, WINDOW) | 1) & (1 << WINDOW) - 1
            self._newest = counter
        else:
            self._seen |= 1 << -ahead


class Session:
    """Keys and counters of two ends that have heard each other's bytes."""

    def __init__(self, secret: bytes, mine: bytes, theirs: bytes) -> None:
        first, second = sorted((mine, theirs))
        keys = derived(secret, first + second, 64)
        ours, others = (keys[:32], keys[32:]) if mine == first else (keys[32:], keys[:32])
        self._seal = ChaCha20Poly1305(ours).encrypt
        self._open = ChaCha20Poly1305(others).decrypt
        self._counter = 0
        self._window = Window()
        self.refused = 0

    def seal(self, packets: Iterable[bytes]) -> list[bytes]:
        """The packets as datagrams."""
        seal, counter = self._seal, self._counter
        sealed = []
        for packet in packets:
            number = counter.to_bytes(8, "little")
            counter += 1
            head = DATA + number
            sealed.append(head + seal(b"\0\0\0\0" + number, packet, head))
        self._counter = counter
        return sealed

    def open(self, datagrams: Iterable[bytes]) -> list[bytes]:
        """The packets of those that are genuine and new; the others are counted."""
        packets = []
        for datagram in datagrams:
            head = datagram[:9]
            counter = int.from_bytes(head[1:], "little")
            if len(datagram) < OVERHEAD or head[:1] != DATA or not self._window.is_new(counter):
                self.refused += 1
                continue
            try:
                packets.append(self._open(b"\0\0\0\0" + head[1:], datagram[9:], head))
            except InvalidTag:
                self.refused += 1
            else:
                self._window.note(counter)
        return packets


class Greeting:
    """One end's part in beginning a session. ``session``: the one that there is, or None."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._key = ChaCha20Poly1305(derived(secret, b"hello", 32))
        self._mine = os.urandom(32)
        self._theirs = NOBODY
        self.session: Session | None = None
        self.refused = 0

    def hello(self) -> bytes:
        """What to send until there is a session."""
        nonce = os.urandom(12)
        return HELLO + nonce + self._key.encrypt(nonce, self._mine + self._theirs, HELLO)

    def hear(self, datagram: bytes) -> bytes | None:
        """Take in a hello; what to answer."""
        try:
            said = self._key.decrypt(datagram[1:13], datagram[13:], HELLO)
        except (InvalidTag, ValueError):
            self.refused += 1
            return None
        theirs, mine = said[:32], said[32:]
        if mine == self._mine and (self.session is None or theirs != self._theirs):
            self._theirs = theirs
            self.session = Session(self._secret, self._mine, theirs)
            return self.hello()
        if mine == self._mine:
            return None  # the answer to our answer
        known, self._theirs = self._theirs, theirs
        answer = self.hello()  # which the other end has to repeat before it is believed
        self._theirs = known
        return answer
