"""The command, as its user runs it: exit status, output, and never a traceback."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import netstack_gro
from tests.builders import udp4
from tests.capture_files import pcap_header, records_of
from tests.captures import RAW, Shot, capture, segments
from tests.command import COMMAND, ENGINE, assert_clean, environment, objects, posix, run

LEAST_KEYS = {
    "file",
    "link_types",
    "packets_in",
    "packets_out",
    "super_packets",
    "segments",
    "bytes_in",
    "verdicts",
    "truncated",
    "already_aggregated",
    "verified",
    "engine",
    "warnings",
}


@pytest.fixture
def some(tmp_path: Path) -> Path:
    """A capture of five packets that merge and one that does not."""
    path = tmp_path / "some.pcapng"
    shots = [Shot(packet, 1000 * number) for number, packet in enumerate(segments(5))]
    path.write_bytes(capture([*shots, Shot(udp4(b"lone"), 9000)]))
    return path


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A capture that ends within its sixth record."""
    path = tmp_path / "cut.pcapng"
    path.write_bytes(capture(segments(6))[:-50])
    return path


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A capture with three packets before the damage."""
    path = tmp_path / "damaged.pcapng"
    path.write_bytes(capture(segments(3)) + b"\x06\0\0\0\x0d\0\0\0" + bytes(40))
    return path


# --- what it prints ------------------------------------------------------------------------------


def test_the_version_says_which_engine(some: Path) -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout == f"netstack-gro {netstack_gro.__version__} ({ENGINE} engine)\n"


def test_a_table_on_standard_output_and_the_engine_on_standard_error(some: Path) -> None:
    result = run("replay", some, "--verify")
    assert result.returncode == 0
    assert result.stderr == f"engine: {ENGINE}\n"
    assert result.stdout.startswith(f"{some}: ip (101), batches of 64\n")
    assert "5 packets into 1 super-packet: 5.0 in each" in result.stdout
    assert "verified   yes" in result.stdout
    assert re.search(r"\n  1  opened  could be merged, but nothing followed", result.stdout)


def test_json_is_one_object_a_file_with_what_was_promised(some: Path, cut: Path) -> None:
    result = run("replay", "--json", some, cut, some)
    assert result.returncode == 0
    first, second, third = objects(result)
    assert first == third
    assert first.keys() >= LEAST_KEYS
    assert first["file"] == str(some)
    assert first["link_types"] == [RAW]
    assert (first["packets_in"], first["packets_out"]) == (6, 2)
    assert (first["super_packets"], first["segments"]) == (1, 5)
    assert first["verdicts"] == {"merged": 5, "opened": 1}
    assert first["verified"] is None
    assert first["engine"] == ENGINE
    assert first["warnings"] == []
    assert second["packets_in"] == 5
    assert len(second["warnings"]) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (64, None, 2)),
        (["--batch", "3"], (3, None, 3)),
        (["--batch", "1"], (1, None, 6)),
        (["--window", "0.000003"], (None, 3000, 3)),
        (["--window", "1e-6"], (None, 1000, 6)),
        (["--window", "3600"], (None, 3600 * 10**9, 2)),
    ],
)
def test_batches_and_windows(
    some: Path, arguments: list[str], expected: tuple[int | None, int | None, int]
) -> None:
    (report,) = objects(run("replay", "--json", "--verify", *arguments, some))
    assert (report["batch"], report["window_ns"], report["packets_out"]) == expected
    assert report["verified"] is True


def test_udp_is_on_unless_it_is_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "udp.pcapng"
    path.write_bytes(capture([udp4(bytes(99), ident=number) for number in range(4)]))
    outs = [
        objects(run("replay", "--json", *arguments, path))[0]["packets_out"]
        for arguments in ((), ("--udp",), ("--no-udp",))
    ]
    assert outs == [1, 1, 4]


def test_the_mtu_is_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "large.pcapng"
    path.write_bytes(capture([udp4(bytes(2000))]))
    (report,) = objects(run("replay", "--json", "--mtu", "1500", path))
    assert report["already_aggregated"] == 1


def test_help_tells_of_defaults_and_exit_status() -> None:
    result = run("replay", "--help")
    assert result.returncode == 0
    text = " ".join(result.stdout.split())
    for words in ("default: 64", "on unless --no-udp", "1 verification failed", "--strict"):
        assert words in text


# --- exit status ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["replay"],
        ["replay", "--batch", "0", "x"],
        ["replay", "--batch", "65537", "x"],
        ["replay", "--batch", "many", "x"],
        ["replay", "--window", "0", "x"],
        ["replay", "--window", "nan", "x"],
        ["replay", "--window", "inf", "x"],
        ["replay", "--window", "1e999999999", "x"],
        ["replay", "--window", "1e-10", "x"],
        ["replay", "--window", "-1", "x"],
        ["replay", "--batch", "2", "--window", "1", "x"],
        ["replay", "--mtu", "67", "x"],
        ["play", "x"],
    ],
)
def test_a_wrong_command_line_is_2_with_a_usage_line(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("usage: netstack-gro")
    assert result.stdout == ""


def test_a_capture_that_cannot_be_read_is_2_and_the_others_are_replayed(
    some: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("not a capture at all")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "radio.pcap").write_bytes(pcap_header(link=127))
    (tmp_path / "folder").mkdir()
    names = [tmp_path / name for name in ("text", "empty", "radio.pcap", "folder", "nowhere")]
    result = run("replay", "--json", *names, some)
    assert result.returncode == 2
    reports = objects(result)
    assert [bool(report["error"]) for report in reports] == [True] * 5 + [False]
    assert reports[5]["packets_in"] == 6
    for name, report in zip(names, reports, strict=False):
        assert report["file"] == str(name)
        assert f"netstack-gro: {report['error']}\n" in result.stderr
    assert "link type 127" in reports[2]["error"]


def test_a_cut_file_is_a_warning_and_1_only_under_strict(cut: Path) -> None:
    result = run("replay", cut)
    assert result.returncode == 0
    assert f"netstack-gro: {cut}: warning: byte " in result.stderr
    assert "5 packets" in result.stdout
    assert run("replay", "--strict", cut).returncode == 1


def test_a_damaged_file_is_replayed_up_to_there_and_2(damaged: Path) -> None:
    result = run("replay", "--verify", damaged)
    assert result.returncode == 2
    assert "3 packets into 1 super-packet" in result.stdout
    assert f"netstack-gro: {damaged}: byte " in result.stderr


def test_strict_without_a_warning_is_0(some: Path) -> None:
    assert run("replay", "--strict", "--verify", some).returncode == 0


FAILING = """
import sys
from netstack_gro import cli, verify

right = verify.Verifier.expect


def wrong(self, record, found, link):
    right(self, record._replace(data=record.data[:-1] + b"!"), found, link)


verify.Verifier.expect = wrong
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_failed_verification_is_1_and_says_what_differs(some: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FAILING, "replay", "--verify", "--json", some],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert result.returncode == 1
    (report,) = objects(result)
    assert report["verified"] is False
    assert report["faults"]
    assert (
        f"netstack-gro: {some}: record 1: byte 139 (payload) is 0x00, in the file 0x21"
        in result.stderr
    )


INTERNAL = """
import sys
from netstack_gro import cli
from netstack_gro.commands import replay

def broken(*arguments, **options):
    raise KeyError("oh")


replay.replay = broken
sys.exit(cli.main(sys.argv[1:]))
"""


def test_even_a_fault_of_our_own_is_one_line(some: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERNAL, "replay", some],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "netstack-gro: internal error: KeyError: 'oh' (<string>:7)" in result.stderr


# --- where captures come from --------------------------------------------------------------------


def test_standard_input_is_read(some: Path) -> None:
    with some.open("rb") as stream:
        (report,) = objects(run("replay", "--json", "--verify", "-", stdin=stream))
    assert report["packets_in"] == 6
    assert report["file"] == "standard input"
    result = run("replay", "--json", "-", input=some.read_bytes())
    assert objects(result)[0]["packets_in"] == 6


def test_standard_input_that_is_empty_or_closed_is_2(some: Path) -> None:
    assert run("replay", "-", stdin=subprocess.DEVNULL).returncode == 2
    if os.name == "posix":
        shell = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "replay", "-"]
        result = subprocess.run(
            shell, capture_output=True, text=True, timeout=60, env=environment(), check=False
        )
        assert result.returncode == 2
        assert_clean(result.stderr)


def test_gzip_is_read(some: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.gz"
    path.write_bytes(gzip.compress(some.read_bytes()))
    (report,) = objects(run("replay", "--json", path))
    assert report["packets_in"] == 6


@posix
def test_a_fifo_is_read_as_it_comes(some: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(
        [*COMMAND, "replay", "--json", str(fifo)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        content = some.read_bytes()
        with fifo.open("wb", buffering=0) as stream:
            for start in range(0, len(content), 100):
                stream.write(content[start : start + 100])
        out, errors = process.communicate(timeout=60)
    assert_clean(errors.decode())
    assert json.loads(out)["packets_in"] == 6


@posix
def test_a_name_that_is_not_utf8_is_no_obstacle(some: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/odd\xff\x1b[31m.pcapng"
    try:
        shutil.copy(os.fsencode(some), name)
    except OSError:
        pytest.skip("this file system refuses such names")
    for arguments in (["--json"], []):
        result = run("replay", *arguments, os.fsdecode(name))
        assert result.returncode == 0
        assert "\x1b" not in result.stdout
    assert run("replay", os.fsdecode(name + b"x")).returncode == 2


def test_a_terminal_of_few_letters_gets_escapes(some: Path, tmp_path: Path) -> None:
    path = tmp_path / "größe.pcapng"
    shutil.copy(some, path)
    result = run("replay", path, env={**environment(), "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0
    assert "gr\\xf6\\xdfe.pcapng: ip" in result.stdout


# --- the output file -----------------------------------------------------------------------------


def test_what_was_delivered_is_written(some: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    result = run("replay", "--verify", "-o", out, some)
    assert result.returncode == 0
    records = records_of(out.read_bytes())
    assert [len(record.data) for record in records] == [540, 32]
    assert "others at 0.000001000 0.000002000" in records[0].comments[0]


def test_several_captures_go_into_one_file_with_the_interfaces_of_each(
    some: Path, cut: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.pcapng"
    assert run("replay", "-o", out, some, cut, some).returncode == 0
    records = records_of(out.read_bytes())
    assert [record.interface for record in records] == [0, 0, 1, 2, 2]


def test_the_output_may_not_be_an_input(some: Path, tmp_path: Path) -> None:
    before = some.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(some)
    for out in (some, link):
        result = run("replay", "-o", out, some)
        assert result.returncode == 2
        assert f"-o {out}: that is the capture {some} itself" in result.stderr
    with some.open("rb") as stream:
        assert run("replay", "-o", some, "-", stdin=stream).returncode == 2
    assert some.read_bytes() == before


def test_an_output_that_exists_is_left_alone_when_nothing_can_be_read(tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    out.write_bytes(b"precious")
    assert run("replay", "-o", out, tmp_path / "nowhere").returncode == 2
    assert out.read_bytes() == b"precious"


def test_an_output_that_cannot_be_made_is_2(some: Path, tmp_path: Path) -> None:
    result = run("replay", "-o", tmp_path / "no" / "folder", some)
    assert result.returncode == 2
    assert "folder: cannot be written: No such file or directory" in result.stderr


@posix
@pytest.mark.parametrize("count", [1, 300])
def test_a_full_disk_is_1(tmp_path: Path, count: int) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    path = tmp_path / "many.pcapng"
    path.write_bytes(capture([udp4(bytes(900), dport=number) for number in range(count)]))
    result = run("replay", "-o", "/dev/full", path)
    assert result.returncode == 1
    assert "/dev/full: cannot be written: No space left on device" in result.stderr
    with Path("/dev/full").open("wb") as full:
        result = run("replay", path, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    refusal = "netstack-gro: standard output: cannot be written: No space left on device"
    assert result.stderr.splitlines() == [f"engine: {ENGINE}", refusal]


@posix
def test_help_names_every_key_of_the_objects(some: Path) -> None:
    (report,) = objects(run("replay", "--json", some))
    text = run("replay", "--help").stdout.partition("--json prints")[2]
    assert set(report) <= set(re.findall(r"\w+", text))


@posix
@pytest.mark.parametrize("arguments", [["--help"], ["probe"], ["live", "--udp", "127.0.0.1:0"]])
def test_standard_output_that_is_full_is_1_and_one_line(arguments: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    if arguments[0] == "live":
        arguments = [*arguments, "--duration", "0.1"]
    with Path("/dev/full").open("wb") as full:
        result = run(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    refusal = "netstack-gro: standard output: cannot be written: No space left on device"
    assert result.stderr.splitlines()[-1] == refusal


def test_standard_output_can_be_the_output(some: Path) -> None:
    result = subprocess.run(
        [*COMMAND, "replay", "--json", "-o", "-", some],
        capture_output=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert result.returncode == 0
    assert len(records_of(result.stdout)) == 2
    assert json.loads(result.stderr.splitlines()[-1])["packets_out"] == 2
