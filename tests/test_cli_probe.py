"""The command ``probe``, as its user runs it."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import netstack_gro
from netstack_gro.commands import probe_tables
from netstack_gro.probe import Ability, Answer, ReceiveBuffer, Report
from tests import rights
from tests.command import COMMAND, ENGINE, assert_clean, environment, objects, posix, run
from tests.requirements import lacks_root, lacks_tun, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the trials are Linux's")


def test_it_says_what_works_and_exits_with_0() -> None:
    result = run("probe", "--interface", "lo")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"netstack-gro {netstack_gro.__version__}, {ENGINE} engine, Linux ")
    headings = [line.strip() for line in lines if line[:2] == "  " and line[2:3] not in {"", " "}]
    assert headings[0] == "rights"
    assert headings[2:5] == ["UDP sockets", "packet sockets", "TUN and TAP devices"]
    assert headings[5].startswith("lo: ethernet (ARPHRD 772)")
    assert headings[6] == "what to do"
    assert any(line.split()[1:3] == ["UDP_SEGMENT", "4.18"] for line in lines)
    assert any("rx-udp-gro-forwarding" in line and "5.12" in line for line in lines)


def test_json_is_one_object_with_what_was_promised() -> None:
    result = run("probe", "--json", "--interface", "lo")
    assert result.returncode == 0
    (report,) = objects(result)
    assert report["engine"] == ENGINE
    assert report["release"] == os.uname().release
    assert set(report["rights"]) == {"CAP_NET_ADMIN", "CAP_NET_RAW"}
    for ability in report["abilities"].values():
        assert ability["answer"] in {"yes", "unverifiable", "no", "unknown"}
        assert ability["since"]
    assert report["receive_buffer"]["wanted_trains"] == 64
    assert report["interface"]["mtu"] == 65_536
    assert report["interface"]["features"]["rx-gro"]["since"] == "2.6.29"
    assert objects(run("probe", "--json"))[0]["interface"] is None
    words = run("probe", "--help").stdout.partition("--json prints")[2].replace(",", " ").split()
    assert set(report) <= {word.strip(".:;") for word in words}
    for ability in report["abilities"].values():
        assert set(ability) <= {word.strip(".:;") for word in words}


def test_an_interface_that_does_not_exist_is_said_and_no_failure() -> None:
    result = run("probe", "--interface", "no-such")
    assert result.returncode == 0
    assert "  no-such: is no interface here: No such device\n" in result.stdout
    assert "    no-such: ip link shows which interfaces there are\n" in result.stdout


def test_without_rights_it_says_how_to_come_by_them() -> None:
    require(lacks_tun())
    result = rights.with_only((), lambda: run("probe"))
    assert (result.returncode, result.stderr) == (0, "")
    assert "\n    no  CAP_NET_ADMIN  " in result.stdout
    to_do = result.stdout.partition("  what to do\n")[2].splitlines()
    assert [line.split(":")[0].strip() for line in to_do] == ["CAP_NET_ADMIN", "CAP_NET_RAW"]


AS_NOBODY = """
import os
from netstack_gro.probe import probe

probe()  # whatever it imports may be unreadable later
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(probe("lo").to_json())
"""


def test_as_nobody_it_works_as_well() -> None:
    require(lacks_root())
    result = subprocess.run(
        [sys.executable, "-c", AS_NOBODY],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=True,
    )
    report = json.loads(result.stdout)
    assert report["user"] == 65534
    assert report["abilities"]["AF_PACKET"]["answer"] == "no"
    assert report["abilities"]["UDP_GRO"]["answer"] != "no"


# --- words ---------------------------------------------------------------------------------------


def report(**options: Any) -> Report:
    given = {"version": "1", "engine": "compiled", "system": "Linux", "release": "6.1", "user": 0}
    return Report(**{**given, **options})


def ability(name: str, answer: Answer, advice: str) -> Ability:
    return Ability(
        name=name, group="udp", answer=answer, since="1.0", meaning="helps", advice=advice
    )


@pytest.mark.engineless
def test_the_same_advice_is_given_once_and_none_where_all_works() -> None:
    abilities = (
        ability("A", Answer.NO, "do this"),
        ability("B", Answer.UNKNOWN, "do this"),
        ability("C", Answer.UNVERIFIABLE, "do that"),
        ability("D", Answer.YES, ""),
    )
    found = report(abilities=abilities)
    assert probe_tables.advice(found) == [("A", "do this"), ("C", "do that")]
    assert "    everything works here\n" in probe_tables.plain(report(abilities=abilities[3:]))


@pytest.mark.engineless
def test_a_small_receive_buffer_comes_with_the_sysctl_that_mends_it() -> None:
    small = ReceiveBuffer(
        limit=212_992, bytes=212_992, trains=3, wanted_bytes=4_194_240, wanted_trains=64
    )
    text = probe_tables.plain(report(receive_buffer=small))
    assert "no  SO_RCVBUF  room for 3 unread trains of 64 KiB, 64 wanted" in text
    assert "    SO_RCVBUF: sysctl -w net.core.rmem_max=4194240\n" in text


@pytest.mark.engineless
def test_columns_stand_under_each_other_and_empty_ones_are_left_out() -> None:
    rows = [("yes", "short", "", "x"), ("unknown", "a longer name", "", "")]
    assert list(probe_tables.aligned(rows)) == [
        "yes      short          x",
        "unknown  a longer name",
    ]


# --- where it is written to ----------------------------------------------------------------------


@posix
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_closed_pipe_ends_it_quietly(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = run(
            "probe", *arguments, capture_output=False, stdout=writing, stderr=subprocess.PIPE
        )
    finally:
        os.close(writing)
    assert result.returncode == 141
    assert result.stderr == ""


@posix
def test_without_standard_output_it_is_done() -> None:
    shell = ["sh", "-c", 'exec "$@" 1>&-', "sh", *COMMAND, "probe"]
    result = subprocess.run(
        shell, capture_output=True, text=True, timeout=60, env=environment(), check=False
    )
    assert result.returncode == 0
    assert_clean(result.stderr)


@posix
def test_on_a_terminal_it_has_colours() -> None:
    import pty

    master, slave = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "probe", "--interface", "lo"],
        env={**environment(), "TERM": "xterm", "COLUMNS": "120"},
        stdout=slave,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(slave)
        shown = b""
        with os.fdopen(master, "rb", buffering=0) as terminal:
            while True:
                try:
                    shown += terminal.read(65536)
                except OSError:  # EIO: nobody writes any more
                    break
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert_clean(errors.decode() + shown.decode())
    assert b"\x1b[" in shown
    assert b"UDP_SEGMENT" in shown
