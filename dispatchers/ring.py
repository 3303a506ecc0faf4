"""PacketRingDispatcher: the frames of an interface from a memory-mapped ring, nothing copied.

A TPACKET_V3 ring (Documentation/networking/packet_mmap.rst) is a circle of blocks that the kernel
fills with frames and hands over one at a time, and that are given back when the hook has returned.
The price is latency: a block is handed over when it is full or when the kernel's own timer says so,
which counts in milliseconds. At the shortest setting a lone packet waits for about one of them;
through `RecvMmsgDispatcher` it arrives within microseconds, which is what a stack with
request-response traffic should use. The ring is for traffic that fills blocks.
"""

import contextlib
import errno
import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import NoReturn

from netstack_gro.batch import Batch
from netstack_gro.config import GroConfig, within
from netstack_gro.dispatchers import blocks as hot
from netstack_gro.dispatchers.base import DispatcherStats
from netstack_gro.dispatchers.interfaces import is_gone
from netstack_gro.dispatchers.live import LiveDispatcher, named_failures, require_linux
from netstack_gro.dispatchers.packet_socket import (
    SOL_PACKET,
    VNET_SIZE,
    FanoutGroup,
    PacketLink,
    open_packet_socket,
)
from netstack_gro.dispatchers.ring_memory import BLOCK_HEADER, RingMemory
from netstack_gro.dispatchers.slab import live_config
from netstack_gro.errors import ConfigError, PinnedError, UnsupportedError, device_error
from netstack_gro.gro import GroDispatcher
from netstack_gro.hook import Hook

__all__ = ["PacketRingDispatcher", "RingStats"]

# include/uapi/linux/if_packet.h
PACKET_RX_RING = 5
PACKET_VERSION = 10
TPACKET_V3 = 2  # Linux 3.2; with PACKET_VNET_HDR 4.6
TPACKET_ALIGNMENT = 16
FRAME_HEADER = 48  # struct tpacket3_hdr
SOCKADDR_LL = 20  # struct sockaddr_ll, behind each frame header

LINK_HEADER = 14 + 2 * 4  # Ethernet with the tags that the kernel leaves in a frame
LARGEST_PACKET = 40 + 65535  # an IPv6 header and what its length field can say, RFC 8200
# What a block takes that holds one IP packet of that size, as net/packet/af_packet.c lays
# it out: its own header, the frame's, an address, the vnet header and two gaps.
LARGEST_FRAME = (
    BLOCK_HEADER
    + FRAME_HEADER
    + SOCKADDR_LL
    + VNET_SIZE
    + LINK_HEADER
    + LARGEST_PACKET
    + 2 * TPACKET_ALIGNMENT
)
DEFAULT_CAPACITY = 1024
DEFAULT_BLOCKS = 128
MAX_BLOCK = 1 << 30
MAX_RING = 1 << 31
MAX_BLOCKS = 1 << 15
"""Each is a mapping by itself, of which a process may have 65,530 (vm.max_map_count)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStats(DispatcherStats):
    """`DispatcherStats` of a ring.

    truncated: frames that were longer than a block has room for.
    dropped: packets that the kernel dropped, because all blocks were full or because a
        virtio_net_hdr cannot describe them.
    blocks: blocks that were read and given back. freezes: how often the kernel found no free
    block and waited. replaced: blocks that had to be replaced, because views that a hook kept
    pinned them. damaged: frames that did not lie within their block.
    """

    blocks: int = 0
    freezes: int = 0
    replaced: int = 0
    damaged: int = 0


class PacketRingDispatcher(LiveDispatcher):
    """Reads an interface through a TPACKET_V3 ring: a block is a batch, or several.

    interface: its name or index. It may be down.
    hook: takes the engine's flush. Packets lie in the block until it has returned. A view that
        it keeps longer stays readable: the block is replaced and keeps its copy of the bytes
        (``config.max_slabs`` at once; beyond that `dispatch_once` raises PinnedError until views
        are let go, and the kernel drops packets once the other blocks are full).
    config: for the engine; the link layer is the interface's. None: capacity 1,024. A block of
        more packets than the capacity is dispatched in several batches.
    block_size: bytes of a block, a multiple of the page size. None: the smallest power of two
        that the largest IP packet fits in, which is 128 KiB. A frame for which a block
        is too small is cut off: raise it where the interface makes larger ones (BIG TCP).
    blocks: how many blocks, 2 to 32,768. At low rates the timer closes every block after a
        packet or two, so their number times ``timeout_ms`` is how long the hook may pause before
        the kernel drops packets.
    timeout_ms: after how many milliseconds the kernel hands over a block that is not full, at
        least 1. It is the kernel's timer, and the longest that a packet waits for the next one.
    link, vnet_hdr, ignore_outgoing, ignore_others, fanout, promiscuous: see `open_packet_socket`.

    Raises what `open_packet_socket` does, DeviceError where the kernel refuses the ring, and
    UnsupportedError on an interpreter that does not count references (PyPy), where nobody could
    tell whether a block is still looked at. `dispatch_once` raises DeviceDownError when the
    interface goes down, once: it may be called again. DeviceGoneError: it was deleted.
    """

    __slots__ = (
        "_batch",
        "_blocks",
        "_down",
        "_gro",
        "_held",
        "_memory",
        "_next",
        "_reader",
        "_replaced",
        "_socket",
        "_spent",
    )

    def __init__(
        self,
        interface: str | int,
        hook: Hook,
        config: GroConfig | None = None,
        *,
        block_size: int | None = None,
        blocks: int = DEFAULT_BLOCKS,
        timeout_ms: int = 1,
        link: PacketLink | None = None,
        vnet_hdr: bool | None = None,
        ignore_outgoing: bool = True,
        ignore_others: bool = False,
        fanout: FanoutGroup | int | None = None,
        promiscuous: bool = False,
    ) -> None:
        if isinstance(interface, bool) or not isinstance(interface, str | int):
            raise TypeError(
                "interface: an interface's name or index is required, "
                f"not {type(interface).__name__!r}"
            )
        require_linux(str(interface))
        if not hasattr(sys, "getrefcount"):
            raise UnsupportedError(
                str(interface), 0, "a packet ring takes an interpreter that counts references"
            )
        size = _block_size(block_size)
        within("blocks", blocks, 2, min(MAX_RING // size, MAX_BLOCKS))
        within("timeout_ms", timeout_ms, 1, 2**31 - 1)
        request = (size, blocks, size, blocks, timeout_ms, 0, 0)

        def prepare(opened: socket.socket) -> None:
            try:
                opened.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
                opened.setsockopt(SOL_PACKET, PACKET_RX_RING, struct.pack("=7I", *request))
            except OSError as error:
                doing = f"a ring of {blocks} blocks of {size} bytes was refused"
                raise device_error(str(interface), error, doing) from error

        with named_failures(str(interface), "cannot be opened"):
            opened = open_packet_socket(
                interface,
                link=link,
                vnet_hdr=vnet_hdr,
                auxdata=False,  # the ring has it in its frame headers
                ignore_outgoing=ignore_outgoing,
                ignore_others=ignore_others,
                fanout=fanout,
                promiscuous=promiscuous,
                prepare=prepare,
            )
        with contextlib.ExitStack() as undo:
            undo.callback(opened.close)
            config = live_config(config or GroConfig(capacity=DEFAULT_CAPACITY), opened.link)
            self._gro = GroDispatcher(hook, config)
            self._batch = Batch(capacity=config.capacity)
            self._reader = hot.BlockReader(opened.index, opened.mtu, opened.vnet_size)
            try:
                self._memory = RingMemory(opened.fileno(), size, blocks)
            except OSError as error:
                raise device_error(opened.name, error, "the ring cannot be mapped") from error
            undo.callback(self._memory.close)
            self._socket = opened
            self._next = 0
            self._blocks = 0
            self._replaced = 0
            self._held = False
            self._down = True
            self._spent = True  # the delivery of what is in the batch has begun
            super().__init__(opened.fileno(), opened.name)
            opened.detach()
            undo.pop_all()

    @property
    def gro(self) -> GroDispatcher:
        """The engine."""
        return self._gro

    @property
    def stats(self) -> RingStats:
        """A snapshot of the counters; also after `close`."""
        self._count_drops()
        counters = self._socket.counters
        return RingStats(
            engine=self._gro.stats,
            truncated=self._reader.truncated,
            dropped=counters.dropped,
            blocks=self._blocks,
            freezes=counters.frozen,
            replaced=self._replaced,
            damaged=self._reader.damaged,
        )

    def _receive(self) -> int:
        # What was read and not delivered waits: for space, or as a signal came between.
        if self._spent and not self._read():
            # Of an interface that is down, the kernel does not say that it was deleted.
            if self._down and is_gone(self._descriptor):
                self._fail(errno.ENETDOWN)
            return 0
        self._down = False
        return self._deliver()

    def _read(self) -> bool:
        """Fill the batch, from the open block or the next; whether there was one."""
        self._batch.clear()
        if not self._reader.left and not self._open_block():
            return False
        self._spent = False
        self._reader.fill(self._batch)
        return True

    def _open_block(self) -> bool:
        """Go on to the next block that has frames, where the kernel has handed it over."""
        memory = self._memory
        while True:
            if self._held:
                self._batch.attach(None)
                self._give_back()
            if not hot.is_ready(memory.headers[self._next]):
                return False
            self._batch.attach(memory.blocks[self._next])
            if self._reader.open(self._batch):
                return True
            self._held = True

    def _deliver(self) -> int:
        """Dispatch the batch; how many packets it had."""
        gro, batch = self._gro, self._batch
        if gro.pending:  # by the program itself
            gro.flush()
        count = len(batch)
        before = gro._packets_in
        # What is left of a block after a hook's exception is the next batch.
        self._held = not self._reader.left
        self._spent = True
        try:
            if count:
                gro.dispatch(batch)
        except PinnedError:
            # An engine that has no space for headers takes nothing: the batch waits until it has.
            self._spent = gro._packets_in != before
            raise
        finally:
            if self._spent:
                batch.clear()
                if self._held:
                    batch.attach(None)
                    with contextlib.suppress(PinnedError):  # raised before the next is opened
                        self._give_back()
        return count

    def _give_back(self) -> None:
        """Give the block at hand back to the kernel, or another in its place."""
        memory = self._memory
        if memory.is_looked_at(self._next):
            limit = self._gro.config.max_slabs
            kept = memory.kept
            if kept >= limit:
                raise PinnedError(
                    f"views kept by the hook pin {kept} blocks of the ring and the one to be "
                    "used next; use Packet.detach() to keep bytes, or raise max_slabs"
                )
            try:
                memory.replace(self._next)
            except OSError as error:
                raise PinnedError(
                    f"a block that views kept by the hook pin cannot be replaced: {error}"
                ) from error
            self._replaced += 1
        hot.give_back(memory.headers[self._next])
        self._next = (self._next + 1) % len(memory.headers)
        self._held = False
        self._blocks += 1

    def _fail(self, number: int) -> NoReturn:
        self._down = self._down or number == errno.ENETDOWN
        raise self._socket.failure(self._descriptor, number)

    def _release_more(self) -> None:
        try:
            super()._release_more()
        finally:
            self._count_drops()
            self._batch.attach(None)
            self._memory.close()

    def _count_drops(self) -> None:
        """Have the kernel's counters added, while the socket is open."""
        with self._using, contextlib.suppress(OSError):  # closed by others
            if self._descriptor >= 0:
                self._socket.counters.read(self._descriptor)


def _block_size(asked: int | None) -> int:
    """The size of a block in bytes, checked or derived."""
    page = os.sysconf("SC_PAGE_SIZE")
    if asked is None:
        size: int = page
        while size < LARGEST_FRAME:
            size *= 2
        return size
    within("block_size", asked, page, MAX_BLOCK)
    if asked % page:
        raise ConfigError("block_size", f"{asked} is no multiple of the page size, {page}")
    return asked
