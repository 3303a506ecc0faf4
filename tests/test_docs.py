"""What the README and the docs show runs, and what they name is there."""

import io
import re
import shlex
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.verdicts import CloseReason, Verdict
from tests import command, lab
from tests.documents import STAGES, Block, End, blocks
from tests.requirements import lacks_tun, require

CHECKOUT = Path(__file__).resolve().parent.parent
BLOCKS = blocks(CHECKOUT) if (CHECKOUT / "docs").is_dir() else []
PYTHON = [block for block in BLOCKS if block.language == "python"]
SHELL = [block for block in BLOCKS if block.language in {"", "sh"}]

pytestmark = pytest.mark.skipif(not BLOCKS, reason="the docs are not beside the tests")


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert PYTHON
    assert SHELL
    others = {block.language for block in BLOCKS} - {"python", "", "sh", "text"}
    assert not others


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_a_program_runs(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    if block.stage:
        require(lacks_tun())
    monkeypatch.chdir(CHECKOUT)
    names: dict[str, Any] = {"__name__": "example"}
    code = compile("\n" * (block.line - 1) + block.code, str(CHECKOUT / block.page), "exec")
    said = io.StringIO()
    stage = STAGES[block.stage](names) if block.stage else nullcontext()
    with stage, redirect_stdout(said):
        try:
            exec(code, names)
        except End:
            assert block.stage
    assert ("print(" in block.code) == bool(said.getvalue()), said.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with captures of the names that the documents use."""
    folder = tmp_path_factory.mktemp("place")
    demo = (CHECKOUT / "pcaps" / "demo.pcapng").read_bytes()
    for name in ("capture.pcapng", "capture.pcap", "a.pcap", "b.pcap.gz"):
        (folder / name).write_bytes(demo)
    return folder


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_command_line_is_understood(block: Block, place: Path) -> None:
    require(lacks_tun())
    lines = [
        shlex.split(line, comments=True)
        for line in block.code.splitlines()
        if "netstack-gro " in line.partition("#")[0]
    ]
    for words in lines:
        _run_in_place([word for word in words if word != "sudo"], place)


def _run_in_place(words: list[str], place: Path) -> None:
    """Run a line's netstack-gro, where there is eth0; what runs for ever for a moment."""
    given = b""
    if "|" in words:  # what a program gives that may not be here
        assert words[0] == "tcpdump"
        words = words[words.index("|") + 1 :]
        given = (place / "capture.pcap").read_bytes()
    assert Path(words[0]).name == "netstack-gro"
    arguments = words[1:]
    if arguments[0] == "live":
        arguments += ["--duration", "0.2"]
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "eth0", there, "eth0")
        with here:
            done = command.run(*arguments, cwd=place, input=given)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_make_targets_that_are_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    for page in {block.page for block in BLOCKS} | {"CONTRIBUTING.md", "docs/performance.md"}:
        named = set(re.findall(r"\bmake ([a-z][a-z-]+)`", (CHECKOUT / page).read_text()))
        assert named <= targets, page


def test_verdicts_and_reasons_that_are_named_are_there() -> None:
    text = (CHECKOUT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    assert named
    assert named <= set(Verdict.__members__) | set(CloseReason.__members__)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
