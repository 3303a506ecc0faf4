"""The exceptions: what they derive from, what they say, and that they travel between processes."""

import errno
import pickle

import pytest

from netstack_gro import errors
from netstack_gro.errors import (
    CaptureError,
    CaptureFormatError,
    CaptureTruncatedError,
    ConfigError,
    DeviceDownError,
    DeviceError,
    DeviceGoneError,
    EngineStateError,
    GroError,
    GsoError,
    NotPermittedError,
    PinnedError,
    UdpSendError,
    UnsupportedError,
    UnsupportedLinkTypeError,
    VirtioHeaderError,
    device_error,
)

EXAMPLES = [
    ConfigError("capacity", "0 is not within 1 to 65536"),
    EngineStateError("the engine is closed"),
    PinnedError("all slabs are pinned"),
    GsoError("gso_size 0 cuts nothing"),
    VirtioHeaderError("not a 10-byte virtio_net_hdr"),
    CaptureError("a.pcap", "No such file or directory"),
    CaptureFormatError("a.pcap", "not a capture file", 4),
    CaptureTruncatedError("a.pcap", "ends within its header", 3),
    UnsupportedLinkTypeError("a.pcap", 127, 20, "IEEE802_11_RADIOTAP"),
    DeviceError("eth0", errno.EIO, "cannot be read: Input/output error"),
    DeviceGoneError("eth0", errno.ENODEV, "was deleted"),
    DeviceDownError("eth0", errno.ENETDOWN, "cannot be read: Network is down"),
    NotPermittedError("tun0", errno.EPERM, "cannot be made", "CAP_NET_ADMIN"),
    UnsupportedError("tun0", errno.EINVAL, "this kernel has no USO", "6.2"),
    UdpSendError("udp", errno.EMSGSIZE, "too long", [(b"x" * 9, ("192.0.2.1", 7))], 1500),
]

BUILT_IN = {
    ConfigError: ValueError,
    EngineStateError: RuntimeError,
    PinnedError: BufferError,
    GsoError: ValueError,
    VirtioHeaderError: ValueError,
    CaptureError: OSError,
    CaptureFormatError: ValueError,
    CaptureTruncatedError: CaptureFormatError,
    UnsupportedLinkTypeError: ValueError,
    DeviceError: OSError,
    DeviceGoneError: DeviceError,
    DeviceDownError: DeviceError,
    NotPermittedError: PermissionError,
    UnsupportedError: DeviceError,
    UdpSendError: DeviceError,
}


def test_every_error_has_an_example_here() -> None:
    assert {type(error) for error in EXAMPLES} == {
        getattr(errors, name) for name in errors.__all__ if name != "GroError"
    }


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_caught_by_the_package_and_by_the_usual_name(error: GroError) -> None:
    assert isinstance(error, GroError)
    assert isinstance(error, BUILT_IN[type(error)])


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_keeps_what_it_says_when_it_is_pickled(error: GroError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_configuration_error_names_the_field() -> None:
    assert str(EXAMPLES[0]) == "capacity: 0 is not within 1 to 65536"
    assert EXAMPLES[0].field == "capacity"


def test_a_capture_error_names_the_file_and_the_byte() -> None:
    assert str(EXAMPLES[6]) == "a.pcap: byte 4: not a capture file"
    assert str(EXAMPLES[5]) == "a.pcap: No such file or directory"


def test_an_unsupported_link_type_is_named() -> None:
    assert str(EXAMPLES[8]) == (
        "a.pcap: byte 20: link type 127 (LINKTYPE_IEEE802_11_RADIOTAP) is not supported"
    )


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EPERM, NotPermittedError),
        (errno.EACCES, NotPermittedError),
        (errno.ENETDOWN, DeviceDownError),
        (errno.ENODEV, DeviceGoneError),
        (errno.ENXIO, DeviceGoneError),
        (errno.EBADF, DeviceGoneError),
        (errno.EBADFD, DeviceGoneError),
        (errno.EIO, DeviceError),
        (errno.EINVAL, DeviceError),
    ],
)
def test_what_the_kernel_answers_is_an_error_of_the_class_that_fits(
    number: int, kind: type[DeviceError]
) -> None:
    for cause in (number, OSError(number, "whatever")):
        error = device_error("eth0", cause, "cannot be read", right="CAP_NET_RAW")
        assert type(error) is kind
        assert (error.name, error.errno) == ("eth0", number)
        assert str(error).startswith("eth0: cannot be read: ")
        assert ("CAP_NET_RAW" in str(error)) is (kind is NotPermittedError)


def test_what_a_tun_answers_when_it_was_deleted_is_said_in_words() -> None:
    error = device_error("tun0", errno.EBADFD, "cannot be read")
    assert type(error) is DeviceGoneError
    assert str(error) == "tun0: cannot be read: the device was deleted"


def test_an_error_without_a_number_keeps_its_text() -> None:
    error = device_error("eth0", OSError("it is unwell"), "cannot be read")
    assert str(error) == "eth0: cannot be read: it is unwell"
