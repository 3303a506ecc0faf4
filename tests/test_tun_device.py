"""TunDevice: attached with every setting known, on this kernel and on older ones."""

import ctypes
import errno
import fcntl
import gc
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import Any

import pytest

from netstack_gro.dispatchers import tun_device
from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads
from netstack_gro.errors import (
    ConfigError,
    DeviceError,
    DeviceGoneError,
    NotPermittedError,
    UnsupportedError,
)
from tests import builders, lab, tuns
from tests.requirements import lacks_kernel, lacks_tun, require

pytestmark = pytest.mark.engineless

CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h
CAPABILITY_VERSION = 0x20080522
ALL = TunOffloads()
NONE = TunOffloads.none()
TCP_ONLY = TunOffloads(uso=False)


@pytest.fixture
def namespace() -> Iterator[lab.Namespace]:
    require(lacks_tun())
    with lab.Lab() as net:
        yield net.namespace(ipv6=False)


def raw(name: str, flags: int) -> int:
    """A descriptor attached by other means, as another program has it."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, tun_device.TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return descriptor


def drop_net_admin() -> None:
    """Take the right from this thread's effective set, until it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=II", CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    assert libc.capget(header, data) == 0
    words = list(struct.unpack("=6I", data.raw))
    words[0] &= ~(1 << CAP_NET_ADMIN)
    assert libc.capset(header, struct.pack("=6I", *words)) == 0


class Ioctls:
    """The real ioctl(2), with every offload mask noted, and some refused."""

    def __init__(self, refused: int = 0, features: int | None = None) -> None:
        self.masks: list[int] = []
        self._refused = refused
        self._features = features

    def ioctl(self, descriptor: Any, request: int, argument: Any = 0) -> Any:
        if request == tun_device.TUNSETOFFLOAD:
            self.masks.append(argument)
            if argument & self._refused:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if request == tun_device.TUNGETFEATURES and self._features is not None:
            return struct.pack("=i", self._features)
        return fcntl.ioctl(descriptor, request, argument)


# --- attaching ---------------------------------------------------------------------------------


def test_the_kernel_chooses_the_name_and_it_is_reported(namespace: lab.Namespace) -> None:
    with namespace, TunDevice() as tun, TunDevice(kind="tap") as tap, TunDevice("vpn%d") as vpn:
        assert (tun.name, tap.name, vpn.name) == ("tun0", "tap0", "vpn0")
        assert {"tun0", "tap0", "vpn0"} <= set(namespace.interfaces())
        assert (tun.kind, tap.kind) == ("tun", "tap")
        assert (tun.link, tap.link) == ("ip", "ethernet")
        assert "tap0" in repr(tap)


def test_a_device_goes_with_its_descriptor_unless_it_persists(namespace: lab.Namespace) -> None:
    with namespace:
        TunDevice("gone0").close()
        TunDevice("kept0", persist=True).close()
        TunDevice("kept0").close()  # says nothing of it, so it stays
        assert namespace.interfaces() == ["lo", "kept0"]
        TunDevice("kept0", persist=False).close()
        assert namespace.interfaces() == ["lo"]


def test_the_descriptor_neither_blocks_nor_is_inherited(namespace: lab.Namespace) -> None:
    with namespace, TunDevice() as device:
        assert not os.get_blocking(device.fileno())
        assert not os.get_inheritable(device.fileno())


def test_it_is_set_up_and_its_mtu_is_read_when_asked(namespace: lab.Namespace) -> None:
    with namespace, TunDevice() as device:
        assert device.mtu == 1500
        namespace.mtu(device.name, 9000)
        assert device.mtu == 9000
        packet = bytes(device.vnet_size) + tuns.stream(4, builders.UDP, [1])[0]
        with pytest.raises(OSError, match="Input/output"):
            os.write(device.fileno(), packet)
        device.up()
        device.up()
        assert os.write(device.fileno(), packet) == len(packet)


def test_a_renamed_device_is_still_asked_for_its_mtu(namespace: lab.Namespace) -> None:
    with namespace, TunDevice("old0") as device:
        namespace._set("old0", ifname="new0")
        assert device.mtu == 1500
        device.up()


def test_the_header_has_ten_bytes_in_native_order_whatever_was_left(
    namespace: lab.Namespace,
) -> None:
    with namespace:
        flags = tun_device.IFF_TUN | tun_device.IFF_NO_PI | tun_device.IFF_VNET_HDR
        before = raw("tun0", flags)
        fcntl.ioctl(before, tun_device.TUNSETPERSIST, 1)
        fcntl.ioctl(before, tun_device.TUNSETVNETHDRSZ, struct.pack("=i", 12))
        fcntl.ioctl(before, tun_device.TUNSETVNETLE, struct.pack("=i", 1))
        os.close(before)
        get_le = 0x800454DD  # TUNGETVNETLE, include/uapi/linux/if_tun.h
        with TunDevice("tun0") as device:
            assert device.vnet_size == 10
            assert fcntl.ioctl(device, get_le, bytes(4)) == bytes(4)
            tuns.set_up(namespace, device, versions=[4])
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"payload", (tuns.FAR[4], 9000))
            (frame,) = tuns.read_frames(device, 1)
            assert len(frame) == 10 + 28 + len(b"payload")
            assert struct.unpack("=BBHHHH", frame[:10]) == (1, 0, 0, 0, 20, 6)


# --- offloads ----------------------------------------------------------------------------------


def test_all_offloads_are_had_where_the_kernel_has_them(namespace: lab.Namespace) -> None:
    require(lacks_kernel(6, 2))
    with namespace, TunDevice() as device:
        assert device.offloads == device.accepts == ALL
        assert device.vnet_size == 10


@pytest.mark.parametrize("wanted", [NONE, TunOffloads(tso=False, uso=False), TCP_ONLY, ALL])
def test_only_what_the_reader_wants_is_set_but_all_may_be_written(
    namespace: lab.Namespace, monkeypatch: pytest.MonkeyPatch, wanted: TunOffloads
) -> None:
    require(lacks_kernel(6, 2))
    ioctls = Ioctls()
    monkeypatch.setattr(tun_device, "fcntl", ioctls)
    with namespace, TunDevice(offloads=wanted) as device:
        assert device.offloads == wanted
        assert device.accepts == ALL
        # CSUM 1, TSO4 2, TSO6 4, TSO_ECN 8, USO4 0x20, USO6 0x40: include/uapi/linux/if_tun.h
        assert ioctls.masks[-1] == wanted.csum * 1 + wanted.tso * 0x0E + wanted.uso * 0x60


@pytest.mark.parametrize(
    ("refused", "left", "masks"),
    [
        (0x60, TCP_ONLY, [0x6F, 0x0F]),
        (0x6E, TunOffloads(tso=False, uso=False), [0x6F, 0x0F, 0x01]),
        (0x6F, NONE, [0x6F, 0x0F, 0x01, 0x00]),
    ],
)
def test_what_an_older_kernel_refuses_is_given_up_step_by_step(
    namespace: lab.Namespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: int,
    left: TunOffloads,
    masks: list[int],
) -> None:
    ioctls = Ioctls(refused)
    monkeypatch.setattr(tun_device, "fcntl", ioctls)
    caplog.set_level("INFO", logger="netstack_gro")
    with namespace, TunDevice() as device:
        assert device.offloads == device.accepts == left
        assert ioctls.masks == masks
        assert [record.name for record in caplog.records] == ["netstack_gro"]
        assert device.name in caplog.text


@pytest.mark.parametrize("features", [None, 0x1003])
def test_without_a_header_no_offload_is_set(
    namespace: lab.Namespace, monkeypatch: pytest.MonkeyPatch, features: int | None
) -> None:
    """By the user's switch, or on a kernel that does not know IFF_VNET_HDR."""
    ioctls = Ioctls(features=features)
    monkeypatch.setattr(tun_device, "fcntl", ioctls)
    with namespace, TunDevice(vnet_hdr=features is not None) as device:
        assert device.vnet_size == 0
        assert device.offloads == device.accepts == NONE
        assert ioctls.masks == [0]


def test_offloads_are_a_frozen_value_that_cannot_contradict_itself() -> None:
    assert TunOffloads(csum=True, tso=False, uso=False) != NONE
    with pytest.raises(FrozenInstanceError):
        NONE.csum = True  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"^tso:"):
        TunOffloads(csum=False, tso=True, uso=False)
    with pytest.raises(ConfigError, match=r"^uso:"):
        TunOffloads(csum=False, tso=False, uso=True)
    with pytest.raises(ConfigError, match=r"^csum: 1 "):
        TunOffloads(csum=1)  # type: ignore[arg-type]


# --- queues ------------------------------------------------------------------------------------


def test_every_flow_comes_out_of_one_queue(namespace: lab.Namespace) -> None:
    with namespace, TunDevice(multi_queue=True) as first, first.open_queue() as second:
        assert (second.name, second.vnet_size, second.offloads) == (
            first.name,
            first.vnet_size,
            first.offloads,
        )
        tuns.set_up(namespace, first, versions=[4])
        flows = 64
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _round in range(3):
                for flow in range(flows):
                    sender.sendto(b"x", (tuns.FAR[4], 9000 + flow))
        ports: list[list[int]] = []
        for queue in (first, second):
            ports.append([])
            while not tuns.nothing_to_read(queue):
                (frame,) = tuns.read_frames(queue, 1)
                ports[-1].append(int.from_bytes(frame[32:34], "big"))
        assert sorted(ports[0] + ports[1]) == sorted([*range(9000, 9000 + flows)] * 3)
        assert not set(ports[0]) & set(ports[1])
        assert all(ports)


def test_a_queue_lives_and_is_closed_by_itself(namespace: lab.Namespace) -> None:
    with namespace, TunDevice(multi_queue=True) as first:
        with first.open_queue() as second:
            first.close()
            assert namespace.interfaces() == ["lo", "tun0"]
            assert second.mtu == 1500
        assert namespace.interfaces() == ["lo"]


def test_a_further_queue_has_the_header_of_those_that_are_open(namespace: lab.Namespace) -> None:
    with (
        namespace,
        TunDevice(multi_queue=True, vnet_hdr=False) as first,
        TunDevice(first.name, multi_queue=True) as second,
    ):
        assert second.vnet_size == 0
        assert second.offloads == NONE


def test_a_device_of_one_queue_opens_no_other(namespace: lab.Namespace) -> None:
    with namespace, TunDevice() as device, pytest.raises(ConfigError, match=r"^multi_queue:"):
        device.open_queue()


# --- a descriptor of others --------------------------------------------------------------------


def test_a_descriptor_that_was_sent_tells_all_of_its_device(namespace: lab.Namespace) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, namespace, TunDevice("vpn0", kind="tap", multi_queue=True) as sent:
        socket.send_fds(theirs, [b"x"], [sent.fileno()])
        _data, descriptors, _flags, _address = socket.recv_fds(ours, 1, 1)
        with TunDevice.from_fd(descriptors[0], offloads=TCP_ONLY) as device:
            assert device.fileno() == descriptors[0] != sent.fileno()
            assert (device.name, device.kind, device.link) == ("vpn0", "tap", "ethernet")
            assert device.multi_queue
            assert (device.vnet_size, device.offloads) == (10, TCP_ONLY)
            assert device.mtu == sent.mtu
        assert namespace.interfaces() == ["lo", "vpn0"]


def test_the_header_size_of_a_descriptor_that_was_given_stays(namespace: lab.Namespace) -> None:
    with namespace:
        flags = tun_device.IFF_TUN | tun_device.IFF_NO_PI | tun_device.IFF_VNET_HDR
        descriptor = raw("tun0", flags)
        fcntl.ioctl(descriptor, tun_device.TUNSETVNETHDRSZ, struct.pack("=i", 12))
        with TunDevice.from_fd(descriptor) as device:
            assert device.vnet_size == 12
            assert device.accepts.tso
        descriptor = raw("tun0", flags & ~tun_device.IFF_VNET_HDR)
        with TunDevice.from_fd(descriptor) as device:
            assert (device.vnet_size, device.accepts) == (0, NONE)


def test_a_descriptor_of_something_else_is_refused_and_closed(namespace: lab.Namespace) -> None:
    with namespace:
        unattached = os.open("/dev/net/tun", os.O_RDWR)
        with pytest.raises(DeviceGoneError, match=rf"^descriptor {unattached}: "):
            TunDevice.from_fd(unattached)
        null = os.open("/dev/null", os.O_RDWR)
        with pytest.raises(DeviceError, match=rf"^descriptor {null}: "):
            TunDevice.from_fd(null)
        for descriptor in (unattached, null):
            with pytest.raises(DeviceGoneError) as caught:
                TunDevice.from_fd(descriptor)
            assert caught.value.errno == errno.EBADF


# --- refusals ----------------------------------------------------------------------------------


def test_a_device_in_use_says_so(namespace: lab.Namespace) -> None:
    with namespace, TunDevice("tun0"):
        with pytest.raises(DeviceError, match=r"^tun0: .*multi_queue") as caught:
            TunDevice("tun0")
        assert caught.value.errno == errno.EBUSY
        assert caught.value.name == "tun0"


def test_another_kind_of_device_is_not_attached(namespace: lab.Namespace) -> None:
    with namespace, TunDevice("tun0"), TunDevice("many0", multi_queue=True):
        for name, options in (
            ("tun0", {"kind": "tap"}),
            ("tun0", {"multi_queue": True}),
            ("many0", {}),
            ("lo", {}),
            ("a/b", {}),
        ):
            with pytest.raises(DeviceError, match=rf"^{name}: ") as caught:
                TunDevice(name, **options)
            assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("name", ["", "x" * 16, "\u00fc" * 8, "tun\0"])
def test_what_cannot_be_a_name_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^name: "):
        TunDevice(name)


def test_a_kind_that_there_is_not_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"^kind: 'veth'"):
        TunDevice(kind="veth")  # type: ignore[arg-type]


def test_without_the_right_it_is_named(namespace: lab.Namespace) -> None:
    def attempt(device: TunDevice) -> list[NotPermittedError]:
        drop_net_admin()
        caught = []
        for doing in (lambda: TunDevice("tun1"), device.up):
            with pytest.raises(NotPermittedError, match="CAP_NET_ADMIN") as refused:
                doing()
            caught.append(refused.value)
        return caught

    with namespace, TunDevice("tun0") as device:
        errors = lab.Background(attempt, device).result()
        assert [error.name for error in errors] == ["tun1", "tun0"]
        assert {error.right for error in errors} == {"CAP_NET_ADMIN"}


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, UnsupportedError),
        (errno.ENODEV, UnsupportedError),
        (errno.ENXIO, UnsupportedError),
        (errno.EACCES, NotPermittedError),
        (errno.EMFILE, DeviceError),
    ],
)
def test_a_driver_that_cannot_be_opened_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[DeviceError]
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(tun_device, "os", SimpleNamespace(**{**vars(os), "open": refuse}))
    with pytest.raises(kind, match=r"^vpn7: .*/dev/net/tun") as caught:
        TunDevice("vpn7")
    assert type(caught.value) is kind
    assert caught.value.errno == number


def test_on_another_system_it_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tun_device, "sys", SimpleNamespace(platform="darwin"))
    with pytest.raises(UnsupportedError, match="Linux, not darwin"):
        TunDevice()
    assert sys.platform != "darwin" or tun_device.sys is not sys


# --- the end -----------------------------------------------------------------------------------


def test_a_node_that_may_not_be_opened_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, right in ((errno.EACCES, "CAP_DAC_OVERRIDE"), (errno.EPERM, None)):

        def refusing(*arguments: Any, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "open", refusing)
        with pytest.raises(NotPermittedError, match=r"^tun0: /dev/net/tun cannot be op") as caught:
            TunDevice("tun0")
        assert caught.value.right == right


def test_a_deleted_device_is_gone(namespace: lab.Namespace) -> None:
    with namespace, TunDevice("tun0") as device:
        namespace.delete("tun0")
        for doing in (device.up, lambda: device.mtu):
            with pytest.raises(DeviceGoneError, match=r"^tun0: ") as caught:
                doing()
            assert caught.value.errno == errno.EBADFD
            assert "it was deleted" in str(caught.value)


def test_its_mtu_is_not_to_be_had_from_another_namespace(namespace: lab.Namespace) -> None:
    with namespace, TunDevice("tun0") as device, lab.Lab() as net:
        elsewhere = net.namespace()
        with elsewhere, pytest.raises(DeviceGoneError, match=r"^tun0: "):
            device.mtu  # noqa: B018


def test_a_closed_device_gives_no_descriptor(namespace: lab.Namespace) -> None:
    with namespace:
        device = TunDevice("tun0")
        device.close()
        device.close()
        with pytest.raises(DeviceGoneError, match=r"^tun0: .*closed") as caught:
            device.fileno()
        assert caught.value.errno == errno.EBADF


def test_a_device_that_is_forgotten_warns_and_is_closed(namespace: lab.Namespace) -> None:
    with namespace:
        device: TunDevice | None = TunDevice("tun0")
        with pytest.warns(ResourceWarning, match="tun0"):
            device = None
        gc.collect()
        assert device is None
        assert namespace.interfaces() == ["lo"]


def test_a_device_that_could_not_be_prepared_leaves_no_descriptor(
    namespace: lab.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Ioctls):
        def ioctl(self, descriptor: Any, request: int, argument: Any = 0) -> Any:
            if request == tun_device.TUNSETVNETHDRSZ:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return super().ioctl(descriptor, request, argument)

    monkeypatch.setattr(tun_device, "fcntl", Broken())
    with namespace:
        with pytest.raises(DeviceError, match=r"^tun0: .*header of 10 bytes"):
            TunDevice("tun0")
        assert namespace.interfaces() == ["lo"]
