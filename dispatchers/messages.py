"""Message vectors: what recvmmsg(2) and sendmmsg(2) read and write, and what they say of packets.

Receiving a frame of 1,462 bytes that waits in a packet socket takes, in microseconds and with the
kernel's copying (medians, side by side in one run; 32 frames a call, described in a batch):

    recv in a loop                       0.9
    compiled, recvmmsg called directly   0.45
    interpreted, through ctypes          3.1

What the interpreter takes longer is the reading of control messages, not the call; so the direct
call is used where there is a compiler, and ctypes elsewhere.
"""

from netstack_gro import codes, records, wire
from netstack_gro.batch import Batch
from netstack_gro.config import within
from netstack_gro.dispatchers import frames, native
from netstack_gro.errors import ConfigError, EngineStateError

__all__ = ["MessageVector", "PacketMessages", "check_places"]

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
SOL_UDP = 17
UDP_SEGMENT = 103  # include/uapi/linux/udp.h; a message of a u16, where the option takes an int
MSG_DONTWAIT = 0x40  # include/linux/socket.h
MSG_TRUNC = 0x20
AGAIN = 11  # EAGAIN, include/uapi/asm-generic/errno-base.h
INTERRUPTED = 4  # EINTR
SECOND = 1_000_000_000
UNTOUCHED = 0xFFFFFFFF  # in the place of a length, which no message has
VNET_SIZE = 12  # struct virtio_net_hdr_mrg_rxbuf, include/uapi/linux/virtio_net.h; 10 without
MAX_COUNT = 65_536
MAX_STRIDE = 1 << 30
MAX_CONTROL = 1 << 16


class MessageVector:
    """MessageVector(count, stride, control_size, name_size): struct mmsghdr in a row.

    Each message has one buffer: of ``stride`` bytes, in a row in the memory that `aim` names;
    ``control_size`` bytes for control messages and ``name_size`` for an address.

    In interpreted code a signal handler may raise when a call has returned and before anybody has
    seen its answer. What the kernel has written tells which messages it was done with.
    """

    __slots__ = (
        "_control_size",
        "_controls",
        "_count",
        "_flying",
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
    _flying: bool
    _iovecs: native.Memory
    _memory: list[bytearray]
    _name_size: int
    _names: native.Memory
    _start: int
    _stride: int
    _used: int
    _vector: native.Memory

    def __init__(self, count: int, stride: int, control_size: int, name_size: int) -> None:
        if self._vector:
            raise EngineStateError("it is initialised once")
        self._count = within("count", count, 1, MAX_COUNT)
        self._stride = within("stride", stride, 0, MAX_STRIDE)
        self._control_size = within("control_size", control_size, 0, MAX_CONTROL)
        self._name_size = within("name_size", name_size, 0, MAX_CONTROL)
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
        self._flying = False

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
        self._flying = False  # what has come all the same lies elsewhere
        for index in range(self._count):
            native.put_size(
                self._iovecs,
                index * native.IOVEC + native.IOV_BASE,
                native.address(base, index * self._stride),
            )
        return 0

    def _receive(self, descriptor: int, flags: int) -> int:
        """recvmmsg(2) without waiting: how many messages, or -errno.

        Where the answer of an earlier call was lost to an exception, it is given now.
        """
        if self._flying:
            arrived = self._answered(0, self._count)
            self._used = arrived or self._count  # all, for all that is known
            self._flying = False
            if arrived:
                return arrived
        for index in range(self._used):  # what the kernel wrote over last time
            entry = index * native.MMSGHDR
            native.put_size(self._vector, entry + native.MSG_CONTROLLEN, self._control_size)
            native.put32(self._vector, entry + native.MSG_NAMELEN, self._name_size)
            native.put32(self._vector, entry + native.MSG_LEN, UNTOUCHED)
        self._used = 0
        self._flying = True
        count = native.recvmmsg(descriptor, self._vector, 0, self._count, flags | MSG_DONTWAIT)
        if count > 0:
            self._used = count
        self._flying = False
        return count

    def _answered(self, place: int, count: int) -> int:
        """How many of ``count`` messages from ``place`` on the kernel has sent or received."""
        done = 0
        while (
            done < count
            and native.u32(self._vector, (place + done) * native.MMSGHDR + native.MSG_LEN)
            != UNTOUCHED
        ):
            done += 1
        return done

    def _address(self, place: int, name: bytes) -> int:
        """Have a message sent to a packed address, of ``name_size`` bytes at most."""
        to = records.writable(self._names)
        wire.copy(to, place * self._name_size, records.bytes_base(name), 0, len(name))
        native.put32(self._vector, place * native.MMSGHDR + native.MSG_NAMELEN, len(name))
        return 0

    def _control(self, place: int, control: bytes, used: int, segment: int) -> int:
        """Send ``used`` bytes of control messages along, and a segment size unless that is 0."""
        controls = records.writable(self._controls)
        at = place * self._control_size
        wire.copy(controls, at, records.bytes_base(control), 0, used)
        if segment:
            at += used
            native.put_size(controls, at, native.CMSGHDR + 2)
            native.put32(controls, at + native.CMSG_LEVEL, SOL_UDP)
            native.put32(controls, at + native.CMSG_TYPE, UDP_SEGMENT)
            native.put16(controls, at + native.CMSGHDR, segment)
            used += native.CMSGHDR + native.cmsg_align(2)
        # Exact, 0 for none: the kernel would read what is left of another message.
        native.put_size(self._vector, place * native.MMSGHDR + native.MSG_CONTROLLEN, used)
        return 0

    def _carry(self, place: int, address: int, length: int) -> int:
        """Have a message carry ``length`` bytes from ``address`` on; it was not sent yet."""
        iovec = place * native.IOVEC
        native.put_size(self._iovecs, iovec + native.IOV_BASE, address)
        native.put_size(self._iovecs, iovec + native.IOV_LEN, length)
        native.put32(self._vector, place * native.MMSGHDR + native.MSG_LEN, UNTOUCHED)
        return 0


def check_places(capacity: int, stride: int, vnet_size: int) -> None:
    """Raise ConfigError where that many packets cannot lie that far apart behind such headers."""
    within("capacity", capacity, 1, MAX_COUNT)
    within("vnet_size", vnet_size, 0, VNET_SIZE)
    if vnet_size not in {0, VNET_SIZE - 2, VNET_SIZE}:
        raise ConfigError("vnet_size", f"{vnet_size!r} is none of 0, 10 and 12")
    within("stride", stride, vnet_size + 1, MAX_STRIDE)


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
        if self._messages is not None:
            raise EngineStateError("it is initialised once")
        check_places(capacity, stride, vnet_size)
        self._capacity = capacity
        self._stride = stride
        self._vnet = vnet_size
        self._trust = trust
        self._largest = within("largest", largest, 0, MAX_STRIDE)
        self._interface = within("interface", interface, 0, 0xFFFFFFFF)
        self._ends = ends
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
        """Receive into the slab of ``batch`` from now on.

        Raises ValueError where that is too small or cannot be written to.
        """
        if type(batch) is not Batch:
            raise TypeError(f"a batch is required, not {type(batch).__name__!r}")
        self._aim(batch)

    def fill(self, descriptor: int, batch: Batch) -> int:
        """Receive packets into an empty batch, the one that was aimed at; ValueError otherwise.

        Returns 0 where there were some or none, the errno of a call that failed, or -1 at the
        end of a connection.
        """
        if type(batch) is not Batch:
            raise TypeError(f"a batch is required, not {type(batch).__name__!r}")
        self._check(batch)
        return self._fill(descriptor, batch)

    def _aim(self, batch: Batch) -> int:
        if self._messages is None:
            raise EngineStateError("it was not initialised")
        if batch._size < self._capacity * self._stride:
            raise ValueError("the batch's slab is too small")
        if memoryview(batch._slab).readonly:
            raise ValueError("the batch's slab cannot be written to")
        return self._messages._aim(records.writable(batch._base))

    def _check(self, batch: Batch) -> int:
        """Raise where `_fill` would write beyond the batch or read what was not received."""
        if self._messages is None:
            raise EngineStateError("it was not initialised")
        if (
            batch._count
            or batch._limit < self._capacity
            or batch._size < self._capacity * self._stride
            or native.address(records.writable(batch._base), 0) != self._messages._start
        ):
            raise ValueError("the batch is not empty, too small, or not the one that was aimed at")
        return 0

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
    MessageVector,
    ("_control_size", "_count", "_flying", "_name_size", "_start", "_stride", "_used"),
    ("_controls", "_iovecs", "_memory", "_names", "_vector"),
)
records.seal(
    PacketMessages,
    ("_capacity", "_interface", "_largest", "_runts", "_stride", "_truncated", "_vnet"),
    ("_messages",),
)
