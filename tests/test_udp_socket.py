"""What UDP sockets were found able to do, and how that is found out."""

import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.dispatchers import udp_socket
from netstack_gro.dispatchers.addresses import encode_address
from netstack_gro.dispatchers.udp_settings import Settings
from netstack_gro.dispatchers.udp_socket import Support
from tests import lab
from tests.requirements import lacks_root, require

pytestmark = [
    pytest.mark.engineless,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

ALL_ON: dict[str, Any] = {
    "gro": None,
    "ecn": True,
    "packet_info": True,
    "timestamps": True,
    "receive_buffer": udp_socket.WANTED_TRAINS * udp_socket.MAX_TRAIN,
}


@contextmanager
def udp(family: int = socket.AF_INET) -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_DGRAM) as opened:
        yield opened


class OtherKernel(socket.socket):
    """A socket of a kernel that answers in another way: ``answers`` by (what, level, option)."""

    answers: dict[tuple[str, int, int], Callable[[], int] | int]

    def setsockopt(self, level: int, option: int, *value: Any) -> None:  # type: ignore[override]
        if self._answer("set", level, option) is None:
            super().setsockopt(level, option, *value)

    def getsockopt(self, level: int, option: int, *size: Any) -> Any:  # type: ignore[override]
        answer = self._answer("get", level, option)
        return super().getsockopt(level, option, *size) if answer is None else answer

    def _answer(self, what: str, level: int, option: int) -> int | None:
        answer = self.answers.get((what, level, option))
        if answer is not None and answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer


@contextmanager
def kernel(**answers: int) -> Iterator[OtherKernel]:
    """A kernel by its answers to UDP_GRO and UDP_SEGMENT: ``set_gro``, ``get_gro``, ..."""
    options = {"gro": udp_socket.UDP_GRO, "segment": udp_socket.UDP_SEGMENT}
    with OtherKernel(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.answers = {}
        for name, answer in answers.items():
            what, _, option = name.partition("_")
            opened.answers[what, socket.IPPROTO_UDP, options[option]] = answer
        yield opened


def test_this_kernel_has_udp_gro() -> None:
    with udp() as opened:
        assert udp_socket.gro_support(opened) is Support.YES
        assert opened.getsockopt(socket.IPPROTO_UDP, udp_socket.UDP_GRO) == 1
        assert udp_socket.segmentation_support(opened)


@pytest.mark.parametrize(
    ("answers", "support"),
    [
        ({"get_gro": 1}, Support.YES),
        ({"get_gro": -errno.ENOPROTOOPT}, Support.UNVERIFIABLE),
        ({"get_gro": 0}, Support.NO),
        ({"set_gro": -errno.ENOPROTOOPT}, Support.NO),
        ({"set_gro": -errno.EINVAL}, Support.NO),
    ],
)
def test_support_has_three_values(answers: dict[str, int], support: Support) -> None:
    with kernel(**answers) as opened:
        assert udp_socket.gro_support(opened) is support


@pytest.mark.parametrize(
    ("answers", "gro", "trains"),
    [
        ({}, None, True),
        ({}, True, True),
        ({}, False, False),
        ({"get_gro": -errno.ENOPROTOOPT}, None, False),
        ({"get_gro": -errno.ENOPROTOOPT}, True, True),
        ({"get_gro": -errno.ENOPROTOOPT}, False, False),
        ({"set_gro": -errno.ENOPROTOOPT}, True, False),
        ({"set_gro": -errno.ENOPROTOOPT}, None, False),
    ],
)
def test_what_cannot_be_verified_is_off_unless_asked_for(
    answers: dict[str, int], gro: bool | None, trains: bool
) -> None:
    with kernel(**answers) as opened:
        options = udp_socket.prepare(opened, **{**ALL_ON, "gro": gro})
        assert options.trains == trains
        on = socket.socket.getsockopt(opened, socket.IPPROTO_UDP, udp_socket.UDP_GRO)
        assert on == trains, "the option is on where the reader does not know, or the reverse"


@pytest.mark.parametrize("release", ["4.17.0-1-amd64", "3.10.0", "4.9.337", "nonsense"])
def test_an_old_kernel_is_never_trusted_to_cut_trains(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """It would take the message without a word and send one long datagram."""
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*uname[:2], release, *uname[3:])))
    with udp() as opened:
        assert not udp_socket.segmentation_support(opened)


def test_cutting_takes_the_option_as_well() -> None:
    with kernel(get_segment=-errno.ENOPROTOOPT) as opened:
        assert not udp_socket.segmentation_support(opened)


@pytest.mark.parametrize(
    ("release", "numbers"),
    [("6.18.44-fc", (6, 18)), ("4.18", (4, 18)), ("10.0-rc1", (10, 0)), ("x", (0, 0))],
)
def test_the_release_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, release: str, numbers: tuple[int, int]
) -> None:
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*uname[:2], release, *uname[3:])))
    assert udp_socket.kernel_release() == numbers


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_all_options_are_there(family: int) -> None:
    with udp(family) as opened:
        options = udp_socket.prepare(opened, **ALL_ON)
        assert options.gro is Support.YES
        assert (options.ecn, options.packet_info, options.timestamps, options.drops) == (True,) * 4
        assert options.receive_buffer == opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def test_a_missing_option_is_not_an_error() -> None:
    with kernel() as opened:
        for level, option in (
            (socket.IPPROTO_IP, udp_socket.IP_RECVTOS),
            (socket.IPPROTO_IP, udp_socket.IP_PKTINFO),
            (socket.SOL_SOCKET, udp_socket.SO_TIMESTAMPNS),
            (socket.SOL_SOCKET, udp_socket.SO_RXQ_OVFL),
        ):
            opened.answers["set", level, option] = -errno.ENOPROTOOPT
        options = udp_socket.prepare(opened, **ALL_ON)
        assert (options.ecn, options.packet_info, options.timestamps, options.drops) == (False,) * 4
        assert options.trains


def test_the_receive_buffer_holds_64_trains_where_the_kernel_allows() -> None:
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    with udp() as opened:
        options = udp_socket.prepare(opened, **ALL_ON)
        if os.geteuid() == 0 or limit >= ALL_ON["receive_buffer"]:
            assert options.trains_held >= 64
        assert options.receive_buffer >= 2 * min(limit, ALL_ON["receive_buffer"])


def test_with_the_right_to_it_the_receive_buffer_exceeds_the_limit() -> None:
    require(lacks_root())
    wanted = 2 * int(Path("/proc/sys/net/core/rmem_max").read_text())
    with udp() as opened:
        options = udp_socket.prepare(opened, **{**ALL_ON, "receive_buffer": wanted})
        assert options.receive_buffer == 2 * wanted
        assert options.trains_held == wanted // 65_535


def test_a_larger_receive_buffer_stays() -> None:
    with udp() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        before = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        options = udp_socket.prepare(opened, **{**ALL_ON, "receive_buffer": 10_000})
        assert options.receive_buffer == before


def test_the_control_buffer_has_room_for_all_that_may_come() -> None:
    with udp(socket.AF_INET6) as opened:
        options = udp_socket.prepare(opened, **ALL_ON)
    needed = sum(map(socket.CMSG_SPACE, (4, 4, 4, 20, 16, 4)))
    assert udp_socket.control_size(options) >= needed
    with udp() as opened:
        bare = {"gro": False, "ecn": False, "packet_info": False, "timestamps": False}
        options = udp_socket.prepare(opened, **{**ALL_ON, **bare})
        assert socket.CMSG_SPACE(4) <= udp_socket.control_size(options) < needed + 128


def test_options_are_put_back() -> None:
    with udp(socket.AF_INET6) as opened:
        opened.setsockopt(socket.IPPROTO_IPV6, udp_socket.IPV6_RECVTCLASS, 1)

        def state() -> list[int]:
            return [
                opened.getsockopt(*option)
                for option in (
                    (socket.IPPROTO_UDP, udp_socket.UDP_GRO),
                    (socket.IPPROTO_IP, udp_socket.IP_RECVTOS),
                    (socket.IPPROTO_IPV6, udp_socket.IPV6_RECVTCLASS),
                    (socket.IPPROTO_IPV6, udp_socket.IPV6_RECVPKTINFO),
                    (socket.SOL_SOCKET, udp_socket.SO_TIMESTAMPNS),
                    (socket.SOL_SOCKET, udp_socket.SO_RXQ_OVFL),
                )
            ] + [os.get_blocking(opened.fileno())]

        before = state()
        settings = Settings(opened)
        udp_socket.prepare(opened, **ALL_ON)
        os.set_blocking(opened.fileno(), False)
        assert state() == [1, 1, 1, 1, 1, 1, False]
        settings.put_back(opened)
        assert state() == before == [0, 0, 1, 0, 0, 0, True]


def test_without_ipv6_there_is_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ipv6.disable=1, where no IPv6 socket can be opened, or none be bound."""
    require(lacks_root())
    with lab.Lab() as net, net.namespace(ipv6=False):
        with udp_socket.adopted(("", 0)) as opened:
            assert udp_socket.gro_support(opened) is Support.YES
            with udp() as sender:
                sender.sendto(b"heard", ("127.0.0.1", opened.getsockname()[1]))
            assert opened.recv(10) == b"heard"
    original = socket.socket

    def refuse(family: int, *arguments: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return original(family, *arguments)

    monkeypatch.setattr(udp_socket.socket, "socket", refuse)
    with udp_socket.adopted(("", 0)) as opened:
        assert opened.family == socket.AF_INET
        assert udp_socket.gro_support(opened) is Support.YES


def test_a_given_socket_is_duplicated() -> None:
    with udp() as own:
        own.bind(("127.0.0.1", 0))
        with udp_socket.adopted(own) as opened:
            assert opened.fileno() != own.fileno()
            assert opened.getsockname() == own.getsockname()
        assert own.fileno() >= 0


def test_a_scoped_address_is_bound_with_its_scope() -> None:
    require(lacks_root())
    with lab.Lab() as net:
        here = net.namespace()
        net.veth(here, "a", here, "b")
        here.address("a", "fe80::7/64")
        with here, udp_socket.adopted(("fe80::7", 0, 0, here.index("a"))) as opened:
            assert opened.getsockname()[3] == here.index("a")


def test_the_name_tells_where_it_is_and_to_whom() -> None:
    with udp() as opened, udp(socket.AF_INET6) as six:
        opened.bind(("127.0.0.1", 0))
        port = opened.getsockname()[1]
        assert udp_socket.socket_name(opened) == f"udp 127.0.0.1:{port}"
        assert not udp_socket.is_connected(opened)
        opened.connect(("127.0.0.1", 9))
        assert udp_socket.socket_name(opened) == f"udp 127.0.0.1:{port} to 127.0.0.1:9"
        assert udp_socket.is_connected(opened)
        six.bind(("::1", 0))
        assert udp_socket.socket_name(six) == f"udp [::1]:{six.getsockname()[1]}"


@pytest.mark.parametrize("mtu", [1280, 1499, 9000])
def test_the_path_mtu_of_a_peer(mtu: int) -> None:
    require(lacks_root())
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "v", there, "v", mtu=mtu)
        here.address("v", "10.9.0.1/24", "fd09::1/64")
        with here:
            with udp() as opened, udp(socket.AF_INET6) as six:
                four = encode_address(socket.AF_INET, ("10.9.0.2", 9))
                assert udp_socket.path_mtu(opened, four) == mtu
                assert udp_socket.path_mtu(opened, b"") is None
                opened.connect(("10.9.0.2", 9))
                assert udp_socket.path_mtu(opened, b"") == mtu
                for host in ("fd09::2", "10.9.0.2"):
                    name = encode_address(socket.AF_INET6, (host, 9))
                    assert udp_socket.path_mtu(six, name) == mtu
                nowhere = encode_address(socket.AF_INET, ("192.0.2.1", 9))
                with udp() as other:
                    assert udp_socket.path_mtu(other, nowhere) is None
            foreign = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with foreign:  # here, 10.9.0.2 is another host, or none
            assert udp_socket.path_mtu(foreign, four) is None


def test_what_the_kernel_dropped() -> None:
    with udp() as opened, udp() as sender:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.bind(("127.0.0.1", 0))
        sender.connect(opened.getsockname())
        assert udp_socket.dropped(opened) == 0
        for _ in range(50):
            sender.send(bytes(1000))
        opened.setblocking(False)
        came = 0
        while True:
            try:
                opened.recv(2000)
            except BlockingIOError:
                break
            came += 1
        assert udp_socket.dropped(opened) == 50 - came
    assert udp_socket.dropped(opened) is None


def test_other_systems_can_import_it() -> None:
    """They lack some of the names, and find out when they make one that it takes Linux."""
    code = """
import errno, os, socket, sys
for name in ("ENONET", "EHOSTDOWN", "EPROTO", "ENOPROTOOPT"):
    delattr(errno, name)
for name in ("CMSG_LEN", "CMSG_SPACE", "SO_REUSEPORT", "MSG_DONTWAIT", "if_nametoindex"):
    delattr(socket, name)
del os.uname
import netstack_gro
from netstack_gro.dispatchers.udp import UdpDispatcher
from netstack_gro.hooks.udp import UdpTrainSender
from netstack_gro.errors import UnsupportedError
sys.platform = "other"
for kind in (lambda: UdpDispatcher(("", 0), print), lambda: UdpTrainSender(("", 0))):
    try:
        kind()
    except UnsupportedError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "udp: live dispatchers need Linux, this is other\n" * 2


def test_udp_segment_takes_an_int_as_option_and_a_u16_as_message() -> None:
    """What detection and sending rely on: the sizes that this kernel takes, and does not."""
    with udp() as opened:
        with pytest.raises(OSError, match="Invalid argument"):
            opened.setsockopt(socket.IPPROTO_UDP, udp_socket.UDP_SEGMENT, struct.pack("=H", 500))
        opened.setsockopt(socket.IPPROTO_UDP, udp_socket.UDP_SEGMENT, struct.pack("=i", 0))
        opened.bind(("127.0.0.1", 0))
        opened.connect(opened.getsockname())
        for layout, fits in (("=i", False), ("=H", True)):
            control = [(socket.IPPROTO_UDP, udp_socket.UDP_SEGMENT, struct.pack(layout, 100))]
            if fits:
                assert opened.sendmsg([bytes(200)], control) == 200
            else:
                with pytest.raises(OSError, match="Invalid argument"):
                    opened.sendmsg([bytes(200)], control)
