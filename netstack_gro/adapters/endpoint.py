"""asyncio datagram endpoints that receive and send in trains.

    transport, protocol = await create_datagram_endpoint(MyProtocol, local_addr=("::", 4433))

In place of ``loop.create_datagram_endpoint``, for the protocols that there are: what arrives is
read with UDP_GRO and recvmmsg and handed on as bytes, one datagram at a time; what a protocol sends
in one turn of the event loop goes out at its end, in as few calls as possible (UDP_SEGMENT,
sendmmsg).

A protocol that has a method ``datagrams_received(datagrams, address)`` gets all the datagrams of a
train in one call, as a list of bytes, and can then do once what it would do for each.
"""

import asyncio
import errno
import os
import socket
import sys
import warnings
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from netstack_gro.adapters.opening import is_udp, open_socket
from netstack_gro.dispatchers.trains import Train
from netstack_gro.dispatchers.udp import UdpDispatcher
from netstack_gro.errors import DeviceError, UdpSendError
from netstack_gro.hooks.udp import UdpTrainSender

if TYPE_CHECKING:
    from netstack_gro.dispatchers.addresses import Address

__all__ = ["TrainTransport", "create_datagram_endpoint"]

P = TypeVar("P", bound=asyncio.BaseProtocol)

HIGH_WATER = 64 * 1024
"""Bytes that wait for room before a protocol is asked to pause, as asyncio's own transports do."""

BURST = 64 * 1024
"""Bytes after which what a turn sends does not wait for its end: more fits no train."""

_destination = itemgetter(1)


async def create_datagram_endpoint(
    protocol_factory: Callable[[], P],
    local_addr: Any = None,
    remote_addr: Any = None,
    *,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    reuse_port: bool | None = None,
    allow_broadcast: bool | None = None,
    sock: socket.socket | None = None,
    gro: bool | None = None,
    gso: bool | None = None,
    ecn: bool = False,
    receive_buffer: int | None = None,
) -> tuple[asyncio.DatagramTransport, P]:
    """A datagram transport and its protocol, in the running event loop.

    The parameters to ``sock`` are those of ``loop.create_datagram_endpoint``, and mean the same; a
    ``sock`` that is given belongs to the transport from now on. What is no UDP socket, and any
    socket elsewhere than on Linux, gets asyncio's own transport.

    gro, receive_buffer: as for `UdpDispatcher`. gso: as for `UdpTrainSender`.
    ecn: whether ``transport.get_extra_info("ecn")`` says how the datagrams that are being received
        are marked (0 to 3; None where the kernel does not tell, and between calls).

    The transport differs from asyncio's in this: what is sent in a turn of the event loop leaves
    at its end, or once it is 64 KiB, so an error of sending is told to ``error_received`` then.
    """
    loop = asyncio.get_running_loop()
    opened = sock
    if opened is None:
        unix = family == getattr(socket, "AF_UNIX", None)
        if unix or (local_addr is None and remote_addr is None) or sys.platform != "linux":
            return await loop.create_datagram_endpoint(
                protocol_factory,
                local_addr=local_addr,
                remote_addr=remote_addr,
                family=family,
                proto=proto,
                flags=flags,
                reuse_port=reuse_port,
                allow_broadcast=allow_broadcast,
            )
        opened = await open_socket(
            loop, local_addr, remote_addr, family, proto, flags, reuse_port, allow_broadcast
        )
    elif any((local_addr, remote_addr, family, proto, flags, reuse_port, allow_broadcast)):
        raise ValueError("sock: no address, family, flag or option goes with it")
    elif not is_udp(opened):
        return await loop.create_datagram_endpoint(protocol_factory, sock=opened)
    try:
        opened.setblocking(False)
        protocol = protocol_factory()
        made = loop.create_future()
        settings: dict[str, Any] = {"gro": gro, "ecn": ecn}
        if receive_buffer is not None:
            settings["receive_buffer"] = receive_buffer
        transport = TrainTransport(loop, opened, protocol, made, gso=gso, **settings)
    except BaseException:
        opened.close()
        raise
    try:
        await made
    except BaseException:
        transport.close()
        raise
    return transport, protocol


class TrainTransport(asyncio.DatagramTransport):
    """What `create_datagram_endpoint` returns: a transport as asyncio defines it.

    ``get_extra_info`` knows ``socket``, ``sockname``, ``peername``, ``ecn``, and ``dispatcher``:
    the `UdpDispatcher` that reads, whose ``stats`` and ``options`` say what came of it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol: asyncio.BaseProtocol,
        made: "asyncio.Future[None]",
        *,
        gso: bool | None,
        **settings: Any,
    ) -> None:
        peer = None
        with suppress(OSError):
            peer = sock.getpeername()
        super().__init__()
        self._info: dict[str, Any] = {
            "socket": TransportSocket(sock),
            "sockname": sock.getsockname(),
            "peername": peer,
            "ecn": None,
        }
        self._loop = loop
        self._socket: socket.socket | None = sock
        self._peer: Address | None = peer
        self._dispatcher = UdpDispatcher(
            sock, self._received, packet_info=False, timestamps=False, **settings
        )
        try:
            self._sender = UdpTrainSender(sock, gso=gso, timeout=0)
        except BaseException:
            self._dispatcher.close()
            raise
        self._info["dispatcher"] = self._dispatcher
        self._waiting: deque[tuple[bytes, Address | None]] = deque()
        self._size = 0
        self._flushing: asyncio.Handle | None = None
        self._sending = False
        self._blocked = False
        self._failed = False
        self._closing = False
        self._paused = False
        self.set_write_buffer_limits()
        self._protocol: Any = protocol
        self.set_protocol(protocol)
        # Three callbacks, as asyncio has it: what connection_made raises keeps nobody waiting.
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._begin)
        loop.call_soon(_resolve, made)

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open"
        return f"<{type(self).__name__} {self._dispatcher.name} {state}>"

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None:
            warnings.warn(
                f"unclosed transport {self!r}", ResourceWarning, source=self, stacklevel=2
            )
            self._release()

    # --- asyncio.BaseTransport -----------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known by that name; see the class."""
        return self._info.get(name, default)

    def is_closing(self) -> bool:
        """Whether `close` or `abort` was called, or sending has failed for good."""
        return self._closing

    def close(self) -> None:
        """Read no more; send what waits, then tell the protocol (``connection_lost(None)``)."""
        if self._closing:
            return
        self._closing = True
        self._read_no_more()
        if not self._waiting:
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """The same at once: what the kernel has no room for is dropped."""
        if not self._blocked:
            self._flush()  # asyncio's transport would have sent it by now
        self._fail(None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol get what comes from now on."""
        self._protocol = protocol
        self._batched = getattr(protocol, "datagrams_received", None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # --- asyncio.DatagramTransport -------------------------------------------------------------

    def sendto(self, data: Any, addr: Any = None) -> None:
        """Send a datagram at the end of this turn of the event loop.

        data: bytes-like; copied if it is not bytes. addr: as for asyncio: None where the socket is
        connected, in which case no other address but the peer's is taken (ValueError).
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}"
            )
        if self._peer is not None:
            if addr not in (None, self._peer):
                raise ValueError(f"Invalid address: must be None or {self._peer}")
            addr = None
        if self._socket is None or (not data and sys.version_info < (3, 13)):
            return  # as asyncio has it: an empty datagram is sent from 3.13 on
        if self._closing and self._peer is not None and not self._waiting:
            return  # as well
        datagram = data if type(data) is bytes else bytes(data)
        self._waiting.append((datagram, addr))
        self._size += len(datagram)
        if self._blocked:
            self._pause_if_full()
        elif self._size >= BURST or self._closing:
            self._flush()
        elif self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return self._size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Bytes at which the protocol is told to resume, and above which to pause."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set them, as asyncio defines it: 64 KiB and a quarter of it by default."""
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    # --- receiving -----------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._closing:
            self._loop.add_reader(self._dispatcher.fileno(), self._read)

    def _read(self) -> None:
        try:
            self._dispatcher.dispatch_once(0)
        except DeviceError as error:
            if not self._closing:
                self._tell(error)

    def _received(self, trains: list[Train]) -> None:
        for train in trains:
            if self._closing:
                break
            datagrams = [bytes(datagram) for datagram in train]
            self._info["ecn"] = train.ecn
            if self._batched is not None:
                self._call(self._batched, datagrams, train.address)
            else:
                for datagram in datagrams:
                    if not self._closing:
                        self._call(self._protocol.datagram_received, datagram, train.address)
        self._info["ecn"] = None

    def _call(self, method: Callable[..., object], *arguments: Any) -> None:
        """Call the protocol. What it raises is the loop's to report, as after any callback."""
        try:
            method(*arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - what else there is to do is done
            self._report(f"Exception in {method!r}", error)

    def _report(self, message: str, error: BaseException) -> None:
        self._loop.call_exception_handler(
            {
                "message": message,
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )

    def _read_no_more(self) -> None:
        if self._socket is not None and not self._dispatcher.closed:
            self._loop.remove_reader(self._dispatcher.fileno())

    # --- sending -------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what waits, to each destination in turn."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._socket is None or self._sending:  # a protocol sends on being told of an error
            return
        self._sending = True
        try:
            full = self._send_waiting()
        finally:
            self._sending = False
        if full or not self._waiting:
            self._await_room()
        elif self._flushing is None:  # for what was sent meanwhile
            self._flushing = self._loop.call_soon(self._flush)

    def _send_waiting(self) -> bool:
        """Send what waits now, as far as there is room; whether some of it is left."""
        waiting, self._waiting, self._size = self._waiting, deque(), 0
        runs = deque(
            (address, [datagram for datagram, _ in run])
            for address, run in groupby(waiting, _destination)
        )
        while runs and not self._failed:
            address, datagrams = runs.popleft()
            left = self._send(datagrams, address)
            if left:
                runs.appendleft((address, left))
                break
        answer = self._sender.take_refusal()
        if answer and self._peer is not None:  # others are not told, as with asyncio's
            self._tell(OSError(answer, os.strerror(answer)))
        if self._failed:
            return False
        # Before what a protocol has sent meanwhile.
        kept = [(datagram, address) for address, datagrams in runs for datagram in datagrams]
        self._waiting.extendleft(reversed(kept))
        self._size += sum(len(datagram) for datagram, _ in kept)
        return bool(kept)

    def _send(self, datagrams: list[bytes], address: Any) -> list[bytes]:
        """Send to one address; what there was no room for."""
        try:
            self._sender.send(datagrams, address)
        except UdpSendError as error:
            for _ in error.refused:
                self._tell(error)
        except DeviceError as error:
            left = [datagram for datagram, _ in self._sender.take_back()]
            if error.errno in {errno.EAGAIN, errno.ENOBUFS}:
                return left
            self._tell(error)
        except (ValueError, TypeError, OSError):  # no number, of a host or of an interface
            return self._send_by_name(datagrams, address)
        return []

    def _send_by_name(self, datagrams: list[bytes], address: Any) -> list[bytes]:
        """The same, by what asyncio's transport calls: it looks names up, and says what is none."""
        assert self._socket is not None
        for place, datagram in enumerate(datagrams):
            try:
                self._socket.sendto(datagram, address)
            except (BlockingIOError, InterruptedError):
                return datagrams[place:]
            except OSError as error:
                self._tell(error)
            except Exception as error:  # noqa: BLE001 - what an address can be, sendto decides
                self._report("Fatal write error on datagram transport", error)
                self._fail(error)
                break
        return []

    def _await_room(self) -> None:
        """Watch the socket while something waits, and tell the protocol what that means."""
        if self._socket is None:
            return
        if self._waiting and not self._blocked:
            self._blocked = True
            self._loop.add_writer(self._socket.fileno(), self._flush)
        elif not self._waiting and self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._socket.fileno())
        if self._waiting:
            self._pause_if_full()
            return
        if self._paused:
            self._paused = False
            self._call(self._protocol.resume_writing)
        if self._closing:
            self._loop.call_soon(self._lose, None)

    def _pause_if_full(self) -> None:
        if self._size > self._high and not self._paused:
            self._paused = True
            self._call(self._protocol.pause_writing)
        elif self._size <= self._low and self._paused:
            self._paused = False
            self._call(self._protocol.resume_writing)

    # --- ending --------------------------------------------------------------------------------

    def _tell(self, error: OSError) -> None:
        """Tell the protocol of an error of the kernel's, by the class that Python has for it."""
        if self._failed:
            return
        plain = OSError(error.errno, error.strerror) if isinstance(error, DeviceError) else error
        self._call(self._protocol.error_received, plain)

    def _fail(self, error: BaseException | None) -> None:
        if self._socket is None:
            return
        self._failed = True
        self._waiting.clear()
        self._size = 0
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._socket.fileno())
        if not self._closing:
            self._closing = True
            self._read_no_more()
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: BaseException | None) -> None:
        if self._socket is None:
            return
        try:
            self._protocol.connection_lost(error)
        finally:
            self._release()

    def _release(self) -> None:
        opened, self._socket = self._socket, None
        assert opened is not None
        self._sender.close()
        self._dispatcher._shared = False  # nobody goes on with the socket: nothing is to be saved
        self._dispatcher.close()
        opened.close()


def _resolve(made: "asyncio.Future[None]") -> None:
    if not made.done():  # nor cancelled
        made.set_result(None)
