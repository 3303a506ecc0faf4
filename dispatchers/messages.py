"""Message vectors: what recvmmsg(2) and sendmmsg(2) read and write, and what they say of packets.

Receiving a frame of 1,462 bytes that waits in a packet socket takes, in microseconds and with the
kernel's copying (medians, side by side in one run; 32 frames a call, described in a batch):

    recv in a loop                       0.9
    compiled, recvmmsg called directly   0.45
    interpreted, through ctypes          3.1

What the interpreter takes longer is the reading of control messages, not the call; so the direct
call is used where there is a compiler, and ctypes elsewhere.
"""

from netstack_gro import codes, records
from netstack_gro.batch import Batch
from netstack_gro.dispatchers import frames, native

__all__ = ["MessageVector", "PacketMessages"]

SOL_SOCKET = 1  # include/uapi/asm-generic/socket.h
SOL_PACKET = 263  # include/linux/socket.h
PACKET_AUXDATA = 8  # include/uapi/linux/if_packet.h; the message is a struct tpacket_auxdata
AUXDATA = 20  # its bytes
SCM_TIMESTAMPNS = 35  # SO_TIMESTAMPNS_OLD; a struct timespec of two long
TP_STATUS_CSUMNOTREADY = 0x08
TP_STATUS_VLAN_VALID = 0x10
TP_STATUS_VLAN_TPID_VALID = 0x40
TP_STATUS_CSUM_VALID = 0x80
TP_STATUS_GSO_TCP = 0x100  # since 6.3
ETH_P_8021Q = 0x8100
MSG_DONTWAIT = 0x40  # include/linux/socket.h
MSG_TRUNC = 0x20
AGAIN = 11  # EAGAIN, include/uapi/asm-generic/errno-base.h
INTERRUPTED = 4  # EINTR
SECOND = 1_000_000_000


class MessageVector:
    """MessageVector(count, stride, control_size, name_size): struct mmsghdr in a row.

    Each message has one buffer: of ``stride`` bytes, in a row in the memory that `aim` names;
    ``control_size`` bytes for control messages and ``name_size`` for an address.
    """

    __slots__ = (
        "_control_size",
        "_controls",
        "_count",
        "_iovecs",
        "_memory",
        "_name_size",
        "_names",
        "_start",
        "_stride",
        "_used",
        "_vector",
    )

    _control_size: int
    _controls: native.Memory
    _count: int
    _iovecs: native.Memory
    _memory: list[bytearray]
    _name_size: int
    _names: native.Memory
    _start: int
    _stride: int
    _used: int
    _vector: native.Memory

    def __init__(self, count: int, stride: int, control_size: int, name_size: int) -> None:
        self._count = count
        self._stride = stride
        self._control_size = control_size
        self._name_size = name_size
        # One more byte each: an empty bytearray has no memory to point at.
        self._memory = [
            bytearray(size + 1)
            for size in (
                count * native.MMSGHDR,
                count * native.IOVEC,
                count * control_size,
                count * name_size,
            )
        ]
        vector, iovecs, controls, names = self._memory
        self._vector = records.space_base(vector)
        self._iovecs = records.space_base(iovecs)
        self._controls = records.space_base(controls)
        self._names = records.space_base(names)
        for index in range(count):
            self._lay_out(index)
        self._used = count
        self._start = 0

    def _lay_out(self, index: int) -> int:
        """Point a message at its iovec, control buffer and name."""
        entry = index * native.MMSGHDR
        iovec = index * native.IOVEC
        native.put_size(self._vector, entry + native.MSG_IOV, native.address(self._iovecs, iovec))
        native.put_size(self._vector, entry + native.MSG_IOVLEN, 1)
        native.put_size(self._iovecs, iovec + native.IOV_LEN, self._stride)
        if self._control_size:
            controls = native.address(self._controls, index * self._control_size)
            native.put_size(self._vector, entry + native.MSG_CONTROL, controls)
        if self._name_size:
            names = native.address(self._names, index * self._name_size)
            native.put_size(self._vector, entry + native.MSG_NAME, names)
        return 0

    def _aim(self, base: native.Memory) -> int:
        """Have the messages received into the memory at ``base``, of ``count * stride`` bytes."""
        start = native.address(base, 0)
        if start == self._start:
            return 0
        self._start = start
        for index in range(self._count):
            native.put_size(
                self._iovecs,
                index * native.IOVEC + native.IOV_BASE,
                native.address(base, index * self._stride),
            )
        return 0

    def _receive(self, descriptor: int, flags: int) -> int:
        """recvmmsg(2) without waiting: how many messages, or -errno."""
        for index in range(self._used):  # what the kernel wrote over last time
            entry = index * native.MMSGHDR
            native.put_size(self._vector, entry + native.MSG_CONTROLLEN, self._control_size)
            native.put32(self._vector, entry + native.MSG_NAMELEN, self._name_size)
        self._used = 0
        count = native.recvmmsg(descriptor, self._vector, 0, self._count, flags | MSG_DONTWAIT)
        if count > 0:
            self._used = count
        return count


class PacketMessages:
    """PacketMessages(capacity, stride, vnet_size, ...): packets received by recvmmsg(2).

    capacity: packets in one call, at most. stride: bytes from one packet's place in the slab to
    the next's. vnet_size: bytes of the virtio_net_hdr in front of each packet, 0, 10 or 12.
    trust: whether that header is believed; otherwise it is taken off and not looked at.
    control_size: bytes of the control messages that come with a packet. largest: bytes of the
    largest frame that is one packet, where there is no such header to tell; 0: any. interface: the
    number to give every packet. ends: whether an empty message is no packet: a connection's end,
    where nothing else comes.
    """

    __slots__ = (
        "_capacity",
        "_ends",
        "_interface",
        "_largest",
        "_messages",
        "_runts",
        "_stride",
        "_truncated",
        "_trust",
        "_vnet",
    )

    _capacity: int
    _ends: bool
    _interface: int
    _largest: int
    _messages: MessageVector
    _runts: int
    _stride: int
    _truncated: int
    _trust: bool
    _vnet: int

    def __init__(
        self,
        capacity: int,
        stride: int,
        vnet_size: int,
        *,
        trust: bool,
        control_size: int,
        largest: int,
        interface: int,
        ends: bool,
    ) -> None:
        self._capacity = capacity
        self._stride = stride
        self._vnet = vnet_size
        self._trust = trust
        self._largest = largest
        self._interface = interface
        self._ends = ends
        self._runts = 0
        self._truncated = 0
        self._messages = MessageVector(capacity, stride, control_size, 0)

    @property
    def runts(self) -> int:
        """Packets that were shorter than their virtio_net_hdr, and so are none."""
        return self._runts

    @property
    def truncated(self) -> int:
        """Packets that were longer than their place."""
        return self._truncated

    def aim(self, batch: Batch) -> None:
        """Receive into the slab of ``batch`` from now on. ValueError where that is too small."""
        self._aim(batch)

    def fill(self, descriptor: int, batch: Batch) -> int:
        """Receive packets into an empty batch, the one that was aimed at.

        Returns 0 where there were some or none, the errno of a call that failed, or -1 at the
        end of a connection.
        """
        return self._fill(descriptor, batch)

    def _aim(self, batch: Batch) -> int:
        if batch._size < self._capacity * self._stride:
            raise ValueError("the batch's slab is too small")
        return self._messages._aim(records.writable(batch._base))

    def _fill(self, descriptor: int, batch: Batch) -> int:
        messages = self._messages
        count = messages._receive(descriptor, MSG_TRUNC)  # which has the true length told
        if count < 0:
            return 0 if count == -AGAIN or count == -INTERRUPTED else -count
        base = batch._base
        empty = 0
        for index in range(count):
            entry = index * native.MMSGHDR
            length = native.u32(messages._vector, entry + native.MSG_LEN)
            if not length and self._ends:
                empty += 1
                continue
            if length < self._vnet:
                self._runts += 1
                continue
            at = index * self._stride
            got = min(length, self._stride)
            slot = batch._place(at + self._vnet, got - self._vnet)
            slot.interface = self._interface
            if length > got:
                slot.wire_length = length - self._vnet
                self._truncated += 1
            if not self._vnet:
                if self._largest and length > self._largest:
                    slot.flags |= records.AGGREGATED
            elif self._trust:
                frames.describe(slot, base, at)
            used = native.size(messages._vector, entry + native.MSG_CONTROLLEN)
            if used:
                self._read_controls(slot, index * messages._control_size, used)
        return -1 if empty and empty == count else 0

    def _read_controls(self, slot: records.Slot, at: int, used: int) -> int:
        """Give a slot what the control messages of its packet say."""
        controls = self._messages._controls
        end = at + used
        while at + native.CMSGHDR <= end:
            size = native.size(controls, at)
            if size < native.CMSGHDR or size > end - at:
                break
            level = native.i32(controls, at + native.CMSG_LEVEL)
            kind = native.i32(controls, at + native.CMSG_TYPE)
            data = at + native.CMSGHDR
            if level == SOL_PACKET and kind == PACKET_AUXDATA and size >= native.CMSGHDR + AUXDATA:
                self._read_auxdata(slot, data)
            elif level == SOL_SOCKET and kind == SCM_TIMESTAMPNS:
                word = (size - native.CMSGHDR) // 2
                slot.timestamp_ns = native.size(controls, data) * SECOND + native.size(
                    controls, data + word
                )
            at += native.cmsg_align(size)
        return 0

    def _read_auxdata(self, slot: records.Slot, at: int) -> int:
        """Give a slot the tag that was taken out of its frame, and what is known of checksums."""
        controls = self._messages._controls
        status = native.u32(controls, at)
        if status & TP_STATUS_VLAN_VALID:
            protocol = ETH_P_8021Q
            if status & TP_STATUS_VLAN_TPID_VALID:
                protocol = native.u16(controls, at + 18)
            slot.vlan = protocol << 16 | native.u16(controls, at + 16)
        if not self._vnet:
            if status & TP_STATUS_GSO_TCP:
                slot.flags |= records.AGGREGATED
            if status & TP_STATUS_CSUMNOTREADY:
                slot.checksum = codes.PARTIAL
            elif status & TP_STATUS_CSUM_VALID:
                slot.checksum = codes.VERIFIED
        return 0


records.seal(
    MessageVector, ("_control_size", "_count", "_name_size", "_start", "_stride", "_used"), ()
)
records.seal(
    PacketMessages,
    ("_capacity", "_interface", "_largest", "_runts", "_stride", "_truncated", "_vnet"),
    ("_messages",),
)
