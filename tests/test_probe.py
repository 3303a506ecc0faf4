"""What `probe` says against what the kernel does, with all rights and with few."""

import errno
import os
import re
import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.dispatchers import udp_socket
from netstack_gro.probe import Ability, Answer, ReceiveBuffer, Report, probe
from netstack_gro.probe.interface import describe
from netstack_gro.probe.trial import Question, settle
from tests import command, rights
from tests.requirements import lacks_kernel, lacks_root, lacks_tun, require

pytestmark = [
    pytest.mark.engineless,
    pytest.mark.skipif(sys.platform != "linux", reason="the trials are Linux's"),
]

RTMGRP_LINK = 1  # include/uapi/linux/rtnetlink.h

NAMES = {
    "RecvMmsgDispatcher",
    "PacketRingDispatcher",
    "TunDispatcher",
    "UdpDispatcher",
    "UDP_GRO",
    "UDP_SEGMENT",
    "recvmmsg",
    "sendmmsg",
    "SO_RXQ_OVFL",
    "AF_PACKET",
    "PACKET_VNET_HDR",
    "PACKET_AUXDATA",
    "PACKET_IGNORE_OUTGOING",
    "PACKET_FANOUT",
    "TPACKET_V3",
    "/dev/net/tun",
    "TUNSETIFF",
    "IFF_VNET_HDR",
    "IFF_MULTI_QUEUE",
    "TUN_F_CSUM",
    "TUN_F_TSO",
    "TUN_F_USO",
}


@pytest.fixture
def net() -> Iterator[Any]:
    require(lacks_root())
    from tests import lab

    with lab.Lab() as network:
        yield network


def release() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))


def answers(report: Report) -> dict[str, Answer]:
    return {each.name: each.answer for each in report.abilities}


# --- all of it -----------------------------------------------------------------------------------


def test_with_all_rights_there_is_what_the_release_has() -> None:
    require(lacks_tun())
    report = probe()
    assert set(answers(report)) == NAMES
    for ability in report.abilities:
        since = tuple(map(int, ability.since.split(".")[:2]))
        if ability.name == "UDP_GRO":
            since = (5, 12)  # what older kernels have cannot be verified
        assert (ability.answer is Answer.YES) == (release() >= since), ability
    assert all(right.held and right.effective for right in report.rights)


def test_what_does_not_work_comes_with_advice_and_what_works_without() -> None:
    for report in (probe(), rights.with_only((), probe) if os.geteuid() == 0 else probe()):
        for each in (*report.abilities, *report.rights):
            works = each.answer is Answer.YES if isinstance(each, Ability) else each.effective
            assert bool(each.advice) != works, each


def test_nothing_is_left_behind() -> None:
    probe("lo")  # whatever is imported or cached at first
    before = sorted(Path("/proc/self/fd").iterdir()), threading.enumerate()
    probe("lo")
    assert (sorted(Path("/proc/self/fd").iterdir()), threading.enumerate()) == before


def test_no_device_of_it_is_ever_seen_where_a_namespace_can_be_made(net: Any) -> None:
    require(lacks_tun())
    with net.namespace() as namespace:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as bell:
            bell.bind((0, RTMGRP_LINK))
            assert probe()["TUN_F_CSUM"].answer is Answer.YES
            assert select.select([bell], [], [], 0)[0] == []
        assert namespace.interfaces() == ["lo"]


def test_without_the_right_to_a_namespace_the_device_is_seen_for_a_moment_only(net: Any) -> None:
    require(lacks_tun())
    with net.namespace() as namespace:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as bell:
            bell.bind((0, RTMGRP_LINK))
            report = rights.with_only((rights.CAP_NET_ADMIN,), probe)
            assert b"gro-probe0" in bell.recv(65536)
        assert report["TUN_F_CSUM"].answer is Answer.YES
        assert report["AF_PACKET"].answer is Answer.NO
        assert namespace.interfaces() == ["lo"]


# --- rights --------------------------------------------------------------------------------------


def test_without_rights_it_says_which_is_missing_and_tries_the_rest() -> None:
    require(lacks_tun())
    report = rights.with_only((), probe)
    found = answers(report)
    assert [(right.held, right.effective) for right in report.rights] == [(False, False)] * 2
    for name in ("UDP_GRO", "recvmmsg", "UdpDispatcher", "/dev/net/tun", "IFF_VNET_HDR"):
        assert found[name] is Answer.YES, name
    for name in ("AF_PACKET", "RecvMmsgDispatcher", "PacketRingDispatcher"):
        assert found[name] is Answer.NO
        assert report[name].detail.endswith("CAP_NET_RAW is missing")
        assert "setcap cap_net_raw+ep" in report[name].advice
    for name in ("TUNSETIFF", "TunDispatcher"):
        assert found[name] is Answer.NO
        assert report[name].detail.endswith("CAP_NET_ADMIN is missing")
        assert "setcap cap_net_admin+ep" in report[name].advice
    assert report["TunDispatcher"].detail == "TUNSETIFF: CAP_NET_ADMIN is missing"
    for name in ("PACKET_FANOUT", "TPACKET_V3", "TUN_F_USO"):
        assert found[name] is Answer.UNKNOWN


def test_one_right_is_told_from_the_other() -> None:
    require(lacks_tun())
    report = rights.with_only((rights.CAP_NET_RAW,), probe)
    assert [right.effective for right in report.rights] == [False, True]
    assert answers(report)["TPACKET_V3"] is Answer.YES
    assert answers(report)["TUNSETIFF"] is Answer.NO


IN_A_USER_NAMESPACE = """
from tests import rights
try:
    rights.enter_user_namespace()
except OSError as error:
    print(error)
else:
    from netstack_gro.probe import probe
    print(probe().to_json())
"""


def test_rights_over_another_network_are_not_taken_for_rights() -> None:
    require(lacks_root())
    result = subprocess.run(
        [sys.executable, "-c", IN_A_USER_NAMESPACE],
        capture_output=True,
        text=True,
        timeout=60,
        env={**command.environment(), "PYTHONPATH": _with_tests()},
        check=True,
    )
    if not result.stdout.startswith("{"):
        require(f"needs a user namespace: {result.stdout.strip()}")
    report = command.objects(result)[0]
    for right in report["rights"].values():
        assert right["held"] is True
        assert right["effective"] is False
        assert "another user namespace" in right["advice"]
    assert report["abilities"]["TUNSETIFF"]["answer"] == "no"
    assert report["abilities"]["AF_PACKET"]["answer"] == "no"


def _with_tests() -> str:
    return os.pathsep.join([str(Path(__file__).parents[1]), command.environment()["PYTHONPATH"]])


# --- what goes wrong -----------------------------------------------------------------------------


def test_without_a_free_descriptor_nothing_raises() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    for room in range(3):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + room, hard))
        try:
            report = probe("lo")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert set(answers(report)) == NAMES
        if not room:
            assert Answer.YES not in answers(report).values()


@pytest.mark.parametrize("missing", [(socket.AF_INET,), (socket.AF_INET6,)])
def test_either_family_does_for_the_udp_trials(
    missing: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(missing, monkeypatch)
    report = probe()
    assert report["UDP_SEGMENT"].answer is Answer.YES
    assert report["recvmmsg"].answer is Answer.YES
    assert report.receive_buffer is not None


def test_without_any_family_there_is_nothing_to_say_of_udp(monkeypatch: pytest.MonkeyPatch) -> None:
    _without((socket.AF_INET, socket.AF_INET6), monkeypatch)
    report = probe()
    assert report["UDP_GRO"].answer is Answer.UNKNOWN
    assert report["UDP_SEGMENT"].answer is Answer.NO
    assert report.receive_buffer is None


def _without(families: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **options: Any) -> None:
            if family in families:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *rest, **options)

    monkeypatch.setattr(socket, "socket", Refusing)


def test_udp_gro_that_the_kernel_cannot_vouch_for_is_neither_yes_nor_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for support in udp_socket.Support:
        monkeypatch.setattr(udp_socket, "gro_support", lambda opened, support=support: support)
        ability = probe()["UDP_GRO"]
        assert ability.answer == support.value
        assert bool(ability.advice) == (support is not udp_socket.Support.YES)


@pytest.mark.parametrize(
    ("number", "answer", "advice"),
    [
        (errno.ENOENT, Answer.NO, "modprobe tun"),
        (errno.ENODEV, Answer.NO, "modprobe tun"),
        (errno.EACCES, Answer.NO, "chmod"),
        (errno.EIO, Answer.UNKNOWN, ""),
    ],
)
def test_a_missing_tun_driver_is_told_from_a_forbidden_one(
    number: int, answer: Answer, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = os.open

    def refusing(path: Any, *rest: Any, **options: Any) -> int:
        if path == "/dev/net/tun":
            raise OSError(number, os.strerror(number))
        return right(path, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    report = probe()
    assert report["/dev/net/tun"].answer is answer
    assert advice in report["/dev/net/tun"].advice
    assert report["TUN_F_CSUM"].answer is Answer.UNKNOWN
    assert report["TUN_F_CSUM"].detail == "not tried, /dev/net/tun cannot be opened"
    assert report["TunDispatcher"].answer is answer
    if number == errno.EACCES:
        assert report["TunDispatcher"].detail == "/dev/net/tun: the right to open it is missing"


def test_whatever_an_attempt_raises_is_an_answer() -> None:
    question = Question("X", "udp", "9.9", "to be tried")

    def attempt(error: Exception) -> Ability:
        def fail() -> str:
            raise error

        return settle(question, fail, "CAP_X", "ask for it")

    refused = attempt(PermissionError(errno.EPERM, "no"))
    assert (refused.answer, refused.detail) == (Answer.NO, "CAP_X is missing")
    assert refused.advice == "ask for it"
    absent = attempt(OSError(errno.ENOPROTOOPT, "no such option"))
    assert (absent.answer, absent.detail) == (Answer.NO, "no such option")
    assert absent.advice == "it takes Linux 9.9 or later"
    for error in (OSError(errno.EMFILE, "too many"), OSError("odd"), ValueError("odd")):
        assert attempt(error).answer is Answer.UNKNOWN


# --- the receive buffer --------------------------------------------------------------------------


def test_the_receive_buffer_is_what_a_dispatcher_gets() -> None:
    from netstack_gro.dispatchers.udp import UdpDispatcher

    report = probe()
    buffer = report.receive_buffer
    assert buffer is not None
    with UdpDispatcher(("127.0.0.1", 0), lambda trains: None) as dispatcher:
        assert dispatcher.options.receive_buffer // 2 == buffer.bytes
        assert dispatcher.options.trains_held == buffer.trains
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    assert buffer.limit == limit
    assert buffer.enough or limit < buffer.wanted_bytes


def test_a_receive_buffer_is_enough_for_as_many_trains_as_are_wanted() -> None:
    def held(trains: int) -> ReceiveBuffer:
        return ReceiveBuffer(limit=None, bytes=1, trains=trains, wanted_bytes=640, wanted_trains=64)

    assert not held(63).enough
    assert held(64).enough


# --- interfaces ----------------------------------------------------------------------------------


def test_an_interface_is_as_another_client_of_the_kernel_sees_it(net: Any) -> None:
    from pyroute2.ethtool.ioctl import IoctlEthtool

    here, there = net.namespace(), net.namespace()
    net.veth(here, "gro0", there, "gro1", mtu=1400)
    with here:
        found = describe("gro0")
        link = here._link("gro0")
        device = IoctlEthtool("gro0")
        try:
            features = device.get_features()
        finally:
            device.close()
    assert (found.problem, found.link, found.kind, found.driver) == ("", "ethernet", "veth", "veth")
    assert (found.up, found.running, found.mtu) == (True, True, 1400)
    assert found.index == link["index"]
    assert found.hardware == link["ifi_type"]
    assert found.gro_max_size == link.get_attr("IFLA_GRO_MAX_SIZE")
    assert found.gso_max_size == link.get_attr("IFLA_GSO_MAX_SIZE")
    assert len(found.features) == 14
    for each in found.features:
        assert each.on is not None, each
        assert each.on == features.is_active(each.name), each
        assert each.fixed != features.is_available(each.name), each


def test_a_feature_that_is_switched_is_seen(net: Any) -> None:
    here, there = net.namespace(), net.namespace()
    net.veth(here, "gro0", there, "gro1")
    for on in (True, False, True):
        here.offloads("gro0", gro=on)
        with here:
            assert describe("gro0").feature("rx-gro") is on


def test_how_much_the_kernel_merges_is_seen(net: Any) -> None:
    require(lacks_kernel(6, 3))
    here, there = net.namespace(), net.namespace()
    net.veth(here, "gro0", there, "gro1")
    here._set("gro0", gro_max_size=30_000)  # up to 65,536 it sets what holds for IPv4 as well
    with here:
        found = describe("gro0")
    assert (found.gro_max_size, found.gro_ipv4_max_size) == (30_000, 30_000)
    assert found.gso_max_size == 65_536


def test_the_other_end_of_a_veth_is_named_with_what_has_it_cut(net: Any) -> None:
    here, there = net.namespace(), net.namespace()
    net.veth(here, "gro0", there, "gro1")
    net.veth(here, "near", here, "far")
    with here:
        far = describe("gro0")
        near = describe("near")
    assert (near.peer, near.peer_index) == ("far", here.index("far"))
    (text,) = near.merged_before
    assert text.startswith("packets come uncut from the other end of the veth, far, unless: ")
    assert text.endswith("ethtool -K far tso off gso off tx-udp-segmentation off")
    assert (far.peer, far.peer_index) == ("", there.index("gro1"))
    (other,) = far.merged_before
    assert f"interface {far.peer_index} of another network namespace" in other
    here.offloads("near", gro=True)
    with here:
        first, second = describe("near").merged_before
    assert first == "the kernel merges TCP first (rx-gro), unless: ethtool -K near gro off"
    assert second == text


def test_lo_is_cut_by_switching_off_its_own_segmentation() -> None:
    (text,) = describe("lo").merged_before
    assert "unless: ethtool -K lo tso off gso off tx-udp-segmentation off; ip link" in text


def test_a_tun_device_carries_ip_and_may_be_down(net: Any) -> None:
    require(lacks_tun())
    from netstack_gro.dispatchers.tun_device import TunDevice

    with net.namespace(), TunDevice("gro0"):
        found = describe("gro0")
    assert (found.link, found.kind, found.driver) == ("ip", "tun", "tun")
    assert (found.up, found.running) == (False, False)


@pytest.mark.parametrize(
    "name", ["no-such", "", "x" * 16, "x" * 300, "a\0b", "gr\xf6\xdfe", "../lo", "\ud800"]
)
def test_a_name_of_no_interface_is_a_problem_and_no_error(name: str) -> None:
    found = describe(name)
    assert (found.name, found.index, found.features) == (name, 0, ())
    assert found.problem


# --- other systems -------------------------------------------------------------------------------


def test_elsewhere_it_says_that_linux_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    report = probe("lo")
    assert report.problem == "live dispatchers need Linux, this is darwin: captures can be replayed"
    assert (report.rights, report.abilities, report.interface) == ((), (), None)


ELSEWHERE = """
import argparse, asyncio, mmap, os, platform, select, shutil, signal, socket, subprocess, sys
import threading
sys.platform = "win32"
sys.modules["fcntl"] = None
LINUX = {
    mmap: ("MAP_", "PROT_"),
    os: ("EFD", "O_NONBLOCK", "eventfd", "geteuid", "readv", "uname", "writev"),
    select: ("EPOLL", "POLL", "epoll", "poll"),
    socket: ("AF_NETLINK", "AF_PACKET", "AF_UNIX", "CMSG", "MSG_DONTWAIT", "SCM_", "SOCK_NONBLOCK",
             "recvmsg", "sendmsg"),
}
for module, prefixes in LINUX.items():
    for name in dir(module):
        if name.startswith(prefixes):
            delattr(module, name)
from netstack_gro import cli
for arguments in (["probe"], ["live", "--udp", "127.0.0.1:0"], ["live", "--tun", "x"],
                  ["live", "--interface", "lo"], ["replay", *sys.argv[1:]]):
    print(cli.main(arguments))
"""


def test_where_the_system_calls_are_missing_the_command_still_replays(tmp_path: Path) -> None:
    from tests.captures import capture, segments

    path = tmp_path / "some.pcapng"
    path.write_bytes(capture(segments(5)))
    result = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, path],
        capture_output=True,
        text=True,
        timeout=60,
        env=command.environment(),
        check=True,
    )
    command.assert_clean(result.stderr)
    lines = result.stdout.splitlines()
    assert lines.index("0") < lines.index("2")
    assert lines.count("2") == 3
    assert lines[-1] == "0"
    assert "5 packets into 1 super-packet" in result.stdout
    assert result.stderr.count("not win32") + result.stderr.count("this is win32") == 3
