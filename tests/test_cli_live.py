"""The command ``live`` in a process of its own, with real traffic, signals, pipes and terminals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from netstack_gro import cli
from netstack_gro.samples import PacketSample, TrainSample
from tests import rights
from tests.command import COMMAND, ENGINE, assert_clean, environment, run
from tests.requirements import lacks_root, lacks_tun, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="live dispatchers need Linux")

PORT = 4433
OFTEN = ("--interval", "0.05")


@pytest.fixture
def net() -> Iterator[Any]:
    require(lacks_root())
    from tests import lab

    with lab.Lab() as network:
        yield network


@pytest.fixture
def cable(net: Any) -> tuple[Any, Any]:
    """Two namespaces, and what is sent from the first to the second one's 10.0.0.2."""
    near, far = net.namespace(ipv6=False), net.namespace(ipv6=False)
    net.veth(near, "gro0", far, "gro0")
    near.address("gro0", "10.0.0.1/24")
    far.address("gro0", "10.0.0.2/24")
    near.neighbour("gro0", "10.0.0.2", far.mac("gro0"))
    far.neighbour("gro0", "10.0.0.1", near.mac("gro0"))
    return near, far


class Running:
    """The command while it runs: what it has said on standard error, and what comes of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def wait_until_it_says(self, words: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if words in line:
                return line
        pytest.fail(f"it ended: {self.said}")

    def objects(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        return map(json.loads, self.process.stdout)

    def read_until(self, field: str, count: int) -> list[dict[str, Any]]:
        """The samples up to the one with which ``count`` have come, which they have exactly."""
        samples = []
        for sample in self.objects():
            samples.append(sample)
            if sum(each[field] for each in samples) >= count:
                break
        assert sum(each[field] for each in samples) == count
        return samples

    def end(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        """Exit status, and the rest of what it writes, after a signal."""
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=30)
        self.said.append(errors)
        assert_clean("".join(self.said))
        return self.process.returncode, out, errors


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def started(*arguments: str, where: Any = None, **options: Any) -> Iterator[Running]:
    """The command, within a namespace."""
    given: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": environment(),
        # A shell lets what it runs in the background ignore the signal, and children inherit that.
        "preexec_fn": heed_interrupts,
    }
    command = [*COMMAND, "live", *arguments]
    if where is None:
        process = subprocess.Popen(command, **{**given, **options})
    else:
        with where:
            process = subprocess.Popen(command, **{**given, **options})
    with process:
        try:
            yield Running(process)
        finally:
            process.kill()


def send(namespace: Any, address: tuple[str, int], count: int, size: int = 500) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with namespace.socket(family, socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            sender.sendto(bytes(size), address)


# --- sources -------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--ring"], ["--batch", "8", "--no-udp-merge"]])
def test_an_interface_second_by_second_and_in_all(cable: Any, arguments: list[str]) -> None:
    near, far = cable
    with far.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("10.0.0.2", PORT))
        with started("--interface", "gro0", "--json", *OFTEN, *arguments, where=far) as live:
            live.wait_until_it_says("gro0: reading copies")
            live.wait_until_it_says("the other end of the veth, interface ")
            send(near, ("10.0.0.2", PORT), 200)
            samples = live.read_until("packets_in", 200)
            status, out, errors = live.end()
        assert len(receiver.recv(1000)) == 500  # the packets went their way
    assert (status, errors) == (0, "")
    rest = [json.loads(line) for line in out.splitlines()]
    total = rest.pop()
    assert [each["event"] for each in samples + rest] == ["sample"] * len(samples + rest)
    assert total["event"] == "summary"
    for name in ("packets_in", "packets_out", "bytes_in", "bytes_out", "segments", "reads"):
        assert total[name] == sum(each[name] for each in samples + rest)
    assert total["packets_in"] == sum(total["verdicts"].values()) == 200
    assert total["bytes_in"] == 200 * 542
    assert (total["dropped_by_kernel"], total["losses"]) == (0, {})
    assert (total["source"], total["dispatcher"]) == (
        "gro0",
        "ring" if arguments == ["--ring"] else "recvmmsg",
    )
    if "--batch" in arguments:
        assert total["reads"] >= 25
        assert total["super_packets"] == 0


def test_a_tun_device_is_made_and_what_to_do_next_is_said(net: Any) -> None:
    require(lacks_tun())
    near = net.namespace(ipv6=False)
    with started("--tun", "gro%d", "--json", *OFTEN, where=near) as live:
        assert live.wait_until_it_says("made").startswith("gro0: made")
        live.wait_until_it_says("  ip address add 192.0.2.1/24 dev gro0")
        live.wait_until_it_says("  ip link set gro0 up")
        near.address("gro0", "192.0.2.1/24")
        near.up("gro0")
        send(near, ("192.0.2.2", 9), 100)
        samples = live.read_until("packets_in", 100)
        status, out, _ = live.end(signal.SIGTERM)
    assert status == 0
    assert samples[0]["dispatcher"] == "tun"
    assert json.loads(out.splitlines()[-1])["packets_in"] == 100
    assert near.interfaces() == ["lo"]


def test_a_persistent_tun_device_is_attached_and_stays(net: Any) -> None:
    require(lacks_tun())
    from netstack_gro.dispatchers.tun_device import TunDevice

    near = net.namespace(ipv6=False)
    with near:
        TunDevice("gro0", persist=True).close()
    near.address("gro0", "192.0.2.1/24")
    near.up("gro0")
    with started("--tun", "gro0", where=near) as live:
        live.wait_until_it_says("gro0: attached")
        assert live.end()[0] == 0
    assert near.interfaces() == ["lo", "gro0"]


@pytest.mark.parametrize(
    ("address", "target"), [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("", "127.0.0.1")]
)
def test_trains_of_a_udp_socket(net: Any, address: str, target: str) -> None:
    from tests.tuns import UDP_SEGMENT

    here = net.namespace()
    with started("--udp", f"{address}:{PORT}", "--json", *OFTEN, where=here) as live:
        live.wait_until_it_says("reading the datagrams")
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        with here.socket(family, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100)
            for _ in range(10):
                sender.sendto(bytes(950), (target, PORT))
        samples = live.read_until("datagrams", 100)
        status, out, _ = live.end()
    assert status == 0
    total = json.loads(out.splitlines()[-1])
    assert (samples[0]["dispatcher"], total["event"]) == ("udp", "summary")
    assert (total["reads"], total["trains"], total["datagrams"]) == (10, 10, 100)
    assert (total["bytes"], total["sizes"]) == (9500, {"100": 90, "50": 10})
    assert total["datagrams_per_read"] == total["largest_train"] == 10


def test_an_interface_that_goes_down_is_waited_for_and_one_that_is_gone_ends_it(cable: Any) -> None:
    near, far = cable
    far.down("gro0")
    with started("--interface", "gro0", "--json", *OFTEN, where=far) as live:
        live.wait_until_it_says("gro0: it is down; its packets come when it is up")
        far.up("gro0")
        near.wait_for_carrier("gro0")
        send(near, ("10.0.0.2", PORT), 10)
        next(each for each in live.objects() if each["packets_in"])
        far.down("gro0")
        live.wait_until_it_says("its packets are waited for")
        far.up(
            "gro0"
        )  # the kernel does not tell a socket what becomes of an interface that is down
        far.delete("gro0")
        live.wait_until_it_says("netstack-gro: gro0: cannot be read: the interface was deleted")
        out, _ = live.process.communicate(timeout=30)
    assert live.process.returncode == 2
    assert json.loads(out.splitlines()[-1])["event"] == "summary"


# --- what people see -----------------------------------------------------------------------------


def test_without_a_terminal_there_is_a_line_each_time_and_a_summary() -> None:
    result = run("live", "--udp", "127.0.0.1:0", "--interval", "0.1", "--duration", "0.25")
    assert result.returncode == 0
    first, second = result.stderr.splitlines()
    assert first == f"engine: {ENGINE}"
    assert second.startswith("udp 127.0.0.1:")
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == [
        *("seconds", "datagrams/s", "bit/s", "reads/s"),
        *("in", "each", "at", "most", "lost"),
    ]
    assert [line.split() for line in lines[:3]] == [
        [seconds, "0", "0", "0", "-", "0", "0"] for seconds in ("0.1", "0.2", "0.3")
    ]
    assert "through recvmmsg(2) and UDP_GRO, for 0.3 s" in lines[4]
    assert "  lost     nothing" in lines


def test_the_summary_says_what_was_merged_and_why_the_rest_was_not(cable: Any) -> None:
    near, far = cable
    with started("--interface", "gro0", *OFTEN, where=far) as live:
        live.wait_until_it_says("gro0: reading copies")
        assert live.process.stdout is not None
        with near.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender:
            sender.bind(("gro0", 0))
            sender.send(far.mac("gro0") + near.mac("gro0") + b"\x88\xb5" + bytes(50))
        for line in live.process.stdout:
            if line.split()[1] not in {"packets/s", "0"}:
                break
        status, out, _ = live.end()
    assert status == 0
    summary = out[out.index("gro0, through recvmmsg(2)") :]
    assert "  read       1 packet, 64 bytes: " in summary
    assert "  merged     nothing\n" in summary
    assert "  why the rest was not merged\n  1  alone  the only packet of its batch\n" in summary


def test_on_a_terminal_a_table_is_drawn_and_the_summary_stays(cable: Any) -> None:
    import pty

    near, far = cable
    master, slave = pty.openpty()
    env = {**environment(), "TERM": "xterm", "COLUMNS": "120"}
    with started(
        "--interface", "gro0", *OFTEN, where=far, stdout=slave, env=env, text=False
    ) as live:
        os.close(slave)
        shown = b""
        with os.fdopen(master, "rb", buffering=0) as terminal:
            while b"packets read" not in shown:
                shown += terminal.read(65536)
            send(near, ("10.0.0.2", PORT), 100)
            while b"542" not in shown and b"54.2 kbyte" not in shown:
                shown += terminal.read(65536)
            live.process.send_signal(signal.SIGINT)
            while True:
                try:
                    shown += terminal.read(65536)
                except OSError:  # EIO: nobody writes any more
                    break
        assert live.process.stderr is not None
        errors: Any = live.process.stderr.read()
    assert live.process.returncode == 0
    text = shown.decode()
    assert_clean(errors.decode() + text)
    assert "this second" in text
    assert "  read       100 packets, 54,200 bytes" in text
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")  # the cursor is back


# --- how it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_summary_and_0(number: int) -> None:
    with started("--udp", "127.0.0.1:0") as live:
        live.wait_until_it_says("reading the datagrams")
        status, out, errors = live.end(number)
    assert (status, errors) == (0, "")
    assert "read     0 datagrams" in out


def test_each_sample_is_written_at_once() -> None:
    with started("--udp", "127.0.0.1:0", "--json", "--interval", "0.4") as live:
        first = next(live.objects())
        status, out, _ = live.end()
    assert status == 0
    total = json.loads(out.splitlines()[-1])
    assert total["elapsed"] - first["elapsed"] < 10 * 0.4  # a buffer holds some twenty samples


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    with started("--udp", "127.0.0.1:0", "--json", *OFTEN, preexec_fn=ignore_interrupts) as live:
        live.wait_until_it_says("reading the datagrams")
        live.process.send_signal(signal.SIGINT)
        objects = live.objects()
        assert [next(objects)["event"] for _ in range(3)] == ["sample"] * 3
        assert live.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_closed_pipe_ends_it_quietly(arguments: list[str]) -> None:
    with started("--udp", "127.0.0.1:0", *OFTEN, *arguments) as live:
        assert live.process.stdout is not None
        assert live.process.stdout.readline()
        live.process.stdout.close()
        assert live.process.wait(timeout=30) == 141
        assert live.process.stderr is not None
        errors = live.process.stderr.read()
    assert_clean(errors)
    assert "Broken pipe" not in errors


def test_without_standard_output_it_runs_all_the_same() -> None:
    command = [*COMMAND, "live", "--udp", "127.0.0.1:0", "--duration", "0.1"]
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" 1>&-', "sh", *command],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert result.returncode == 0
    assert_clean(result.stderr)


# --- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (["--interface", "lo"], "CAP_NET_RAW"),
        (["--interface", "lo", "--ring", "--json"], "CAP_NET_RAW"),
        (["--tun", "gro-never"], "CAP_NET_ADMIN"),
    ],
)
def test_without_the_right_it_says_which_one_and_how_to_get_it(
    arguments: list[str], right: str
) -> None:
    require(lacks_tun())
    result = rights.with_only((), lambda: run("live", *arguments))
    assert (result.returncode, result.stdout) == (2, "")
    _, refusal, advice = result.stderr.splitlines()
    assert refusal.startswith(f"netstack-gro: {arguments[1]}: ")
    assert f"({right} is needed)" in refusal
    assert f"setcap {right.lower()}+ep " in advice


@pytest.mark.engineless
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--interface", "no-such"], "no-such: is no interface here: No such device"),
        (["--udp", "192.0.2.1:9"], "udp 192.0.2.1:9: cannot be bound"),
    ],
)
def test_what_cannot_be_opened_is_2_and_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["live", *arguments]) == 2
    out, errors = capsys.readouterr()
    (line,) = errors.splitlines()[1:]
    assert out == ""
    assert line.startswith("netstack-gro: ")
    assert words in line


@pytest.mark.engineless
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--udp", "127.0.0.1:0", "--batch", "1025"],
            "--batch: '1025' is not an integer from",
        ),
        (["--interface", "lo", "--batch", "0"], "--batch: '0' is not an integer from 1 to 65536"),
        (["--udp", "[::1]:65536"], "--udp: '[::1]:65536': the port '65536' is not an integer fr"),
        (["--tun", "x" * 16], f"--tun: '{'x' * 16}' is no name of an interface, which has 1 to 15"),
        (["--interface", ""], "--interface: '' is no name of an interface"),
        (["--interface", "a/b"], "--interface: 'a/b' is no name of an interface"),
    ],
)
def test_what_is_out_of_range_is_named_with_the_option_and_the_range(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["live", *arguments]) == 2
    assert f"netstack-gro live: error: argument {words}" in capsys.readouterr().err


@pytest.mark.parametrize("merge", [[], ["--no-udp-merge"]])
def test_lone_datagrams_come_with_what_would_make_trains(net: Any, merge: list[str]) -> None:
    here = net.namespace(ipv6=False)
    address = "127.0.0.1", PORT
    with started("--udp", "127.0.0.1:4433", "--json", *OFTEN, *merge, where=here) as live:
        live.wait_until_it_says("reading the datagrams")
        send(here, address, 3)
        live.read_until("datagrams", 3)
        status, _, errors = live.end()
    assert status == 0
    assert errors.startswith("each datagram came alone: ")
    assert ("UDP_SEGMENT" in errors) == (not merge)


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("TERM", "unknown")])
def test_on_a_terminal_that_cannot_draw_there_are_lines(name: str, value: str) -> None:
    import pty

    master, slave = pty.openpty()
    env = {**environment(), name: value}
    arguments = ("--udp", "127.0.0.1:0", "--interval", "0.05", "--duration", "0.2")
    with started(*arguments, stdout=slave, env=env, text=False) as live:
        os.close(slave)
        shown = b""
        with os.fdopen(master, "rb", buffering=0) as terminal:
            while True:
                try:
                    shown += terminal.read(65536)
                except OSError:  # EIO: nobody writes any more
                    break
        _, errors = live.process.communicate(timeout=30)
    assert live.process.returncode == 0
    assert_clean(bytes(errors).decode() + shown.decode())
    assert b"datagrams/s" in shown
    assert b"\x1b" not in shown


@pytest.mark.engineless
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--interface", "lo", "--udp", "127.0.0.1:9"],
        ["--udp", "127.0.0.1"],
        ["--udp", "::1:9"],
        ["--udp", "[::1]"],
        ["--udp", "127.0.0.1:65536"],
        ["--udp", "127.0.0.1:x"],
        ["--udp", "127.0.0.1:9", "--ring"],
        ["--interface", "lo", "--offloads"],
        ["--interface", "lo", "--batch", "0"],
        ["--interface", "lo", "--duration", "0"],
        ["--interface", "lo", "--duration", "nan"],
        ["--interface", "lo", "--interval", "0.001"],
    ],
)
def test_a_wrong_command_line_is_2_with_a_usage_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["live", *arguments]) == 2
    out, errors = capsys.readouterr()
    assert errors.startswith("usage: netstack-gro live")
    assert out == ""


@pytest.mark.engineless
def test_help_says_what_becomes_of_the_packets(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["live", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("sees copies", "consumes", "[::1]:4433", "CAP_NET_RAW", "default: 64"):
        assert words in text


@pytest.mark.engineless
@pytest.mark.parametrize("kind", [PacketSample, TrainSample])
def test_help_names_every_key_of_the_objects(
    kind: type[PacketSample | TrainSample], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["live", "--help"]) == 0
    words = set(re.findall(r"\w+", capsys.readouterr().out.partition("--json prints")[2]))
    keys = kind(source="eth0", dispatcher="udp", elapsed=1.0, interval=1.0).values()
    assert set(keys) <= words
