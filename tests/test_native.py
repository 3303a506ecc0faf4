"""Native loads, layouts and calls: what the C compiler says against the Python twin."""

import ctypes
import errno
import os
import shlex
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import netstack_gro
from netstack_gro.dispatchers import native
from tests.engines import ENGINES
from tests.requirements import require

pytestmark = [
    pytest.mark.engineless,
    pytest.mark.skipif(sys.platform != "linux", reason="message vectors are Linux's"),
]

LAYOUT = [
    "MMSGHDR",
    "MSG_NAME",
    "MSG_NAMELEN",
    "MSG_IOV",
    "MSG_IOVLEN",
    "MSG_CONTROL",
    "MSG_CONTROLLEN",
    "MSG_FLAGS",
    "MSG_LEN",
    "IOVEC",
    "IOV_BASE",
    "IOV_LEN",
    "CMSGHDR",
    "CMSG_LEVEL",
    "CMSG_TYPE",
]
LOADS = {
    "u16": "unsigned",
    "u32": "unsigned",
    "i32": "int",
    "i64": "long long",
    "size": "Py_ssize_t",
}
STORES = {"put16": "unsigned", "put32": "unsigned", "put_size": "Py_ssize_t"}
BYTES = bytes(range(0x80, 0xA0))


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions and constants of the C header, in a library of their own."""
    folder = tmp_path_factory.mktemp("native")
    lines = ['#include "_native.h"']
    lines += [f"int layout_{name}(void) {{ return NGN_{name}; }}" for name in LAYOUT]
    lines += [
        f"long long load_{name}(const ngn_byte *b, Py_ssize_t at) {{ return ngn_{name}(b, at); }}"
        for name in LOADS
    ]
    lines += [
        f"void store_{name}(ngn_byte *b, Py_ssize_t at, long long v)"
        f" {{ ngn_{name}(b, at, ({kind})v); }}"
        for name, kind in STORES.items()
    ]
    lines.append("long long align(Py_ssize_t n) { return ngn_cmsg_align(n); }")
    source, library = folder / "native.c", folder / "native.so"
    source.write_text("\n".join(lines), "ascii")
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [
        *shlex.split(compiler),
        *("-Wall", "-Werror", "-shared", "-fPIC"),
        f"-I{(Path(netstack_gro.__file__).parent / 'dispatchers').resolve()}",
        f"-I{sysconfig.get_path('include')}",
        *("-o", str(library), str(source)),
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        fault = run.stderr if run.returncode else None
    except OSError as error:
        fault = str(error)
    if fault is not None:
        if "compiled" in ENGINES:
            require(f"needs a C compiler: {fault}")
        pytest.skip(f"needs a C compiler: {fault}")
    loaded = ctypes.CDLL(str(library))
    for name in LOADS:
        function = getattr(loaded, f"load_{name}")
        function.restype, function.argtypes = ctypes.c_longlong, (ctypes.c_void_p, ctypes.c_ssize_t)
    for name in STORES:
        function = getattr(loaded, f"store_{name}")
        function.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_longlong)
        function.restype = None
    loaded.align.restype, loaded.align.argtypes = ctypes.c_longlong, (ctypes.c_ssize_t,)
    return loaded


@pytest.mark.parametrize("name", LAYOUT)
def test_the_twin_lays_out_messages_as_the_c_compiler_does(header: ctypes.CDLL, name: str) -> None:
    assert getattr(native, name) == getattr(header, f"layout_{name}")()


@pytest.mark.parametrize("name", LOADS)
def test_a_load_reads_a_native_word_at_any_offset(header: ctypes.CDLL, name: str) -> None:
    memory = bytearray(BYTES)
    load = getattr(header, f"load_{name}")
    for at in range(16):
        value = load(native.address(memory, 0), at)
        assert getattr(native, name)(memory, at) == (value if name != "size" else value % 2**64)
    size = {"u16": 2, "u32": 4, "i32": 4, "i64": 8}.get(name)
    if size is not None:
        expected = int.from_bytes(BYTES[3 : 3 + size], sys.byteorder, signed=name[0] == "i")
        assert getattr(native, name)(memory, 3) == expected


@pytest.mark.parametrize("name", STORES)
def test_a_store_writes_its_own_bytes_only(header: ctypes.CDLL, name: str) -> None:
    for at in range(16):
        ours, theirs = bytearray(BYTES), bytearray(BYTES)
        getattr(native, name)(ours, at, 0x1234)
        getattr(header, f"store_{name}")(native.address(theirs, 0), at, 0x1234)
        assert ours == theirs != BYTES


def test_control_messages_are_aligned_as_the_c_compiler_does(header: ctypes.CDLL) -> None:
    for length in range(64):
        assert native.cmsg_align(length) == header.align(length)
        assert socket.CMSG_SPACE(length) == native.CMSGHDR + native.cmsg_align(length)
    assert socket.CMSG_LEN(0) == native.CMSGHDR


def test_a_load_outside_its_memory_is_refused() -> None:
    for name in LOADS:
        with pytest.raises(Exception, match="buffer of at least"):
            getattr(native, name)(bytearray(1), 0)


def test_calls_answer_with_the_negative_error_number() -> None:
    vector = bytearray(native.MMSGHDR)
    assert native.recvmmsg(-1, vector, 0, 1, 0) == -errno.EBADF
    assert native.sendmmsg(-1, vector, 0, 1, 0) == -errno.EBADF
    lengths = [7, 7]
    assert native.read_many(-1, bytearray(8), 4, 2, lengths) == 0
    assert lengths == [-errno.EBADF, 7]


def test_packets_are_read_one_by_one_until_there_are_none() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.setblocking(False)
        for packet in (b"one", b"three"):
            theirs.send(packet)
        memory, lengths = bytearray(32), [0] * 4
        assert native.read_many(ours.fileno(), memory, 8, 4, lengths) == 2
        assert lengths[:3] == [3, 5, -errno.EAGAIN]
        assert (memory[0:3], memory[8:13]) == (b"one", b"three")
