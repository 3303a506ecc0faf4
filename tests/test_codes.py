"""The C side of the twins holds the same numbers and names as the Python side."""

import re
from pathlib import Path

import pytest

from netstack_gro import codes, records, wire
from netstack_gro.verdicts import CloseReason, Verdict

PACKAGE = Path(codes.__file__).parent


def declarations(name: str) -> str:
    """The text of a ``.pxd`` without its comments."""
    return re.sub(r"#.*", "", (PACKAGE / name).read_text())


def test_every_code_is_the_same_constant_in_compiled_code() -> None:
    constants = {
        name: int(value, 0)
        for name, value in re.findall(
            r"^    ([A-Z]\w*) = (\S+)$", declarations("codes.pxd"), re.MULTILINE
        )
    }
    assert constants == {
        name: value for name, value in vars(codes).items() if isinstance(value, int)
    }


def test_every_verdict_and_close_reason_has_its_code() -> None:
    assert {name: getattr(codes, name) for name in Verdict.__members__} == dict(Verdict.__members__)
    assert {reason.name: getattr(codes, f"CLOSED_{reason.name}") for reason in CLOSED} == {
        reason.name: int(reason) for reason in CLOSED
    }


CLOSED = [reason for reason in CloseReason if reason is not CloseReason.NOT_HELD]


@pytest.mark.parametrize("kind", ["Slot", "Head", "Parsed", "Bucket"])
def test_a_record_has_the_fields_of_its_struct(kind: str) -> None:
    body = re.search(rf"cdef struct {kind}:\n((?:    .*\n)+)", declarations("records.pxd"))
    assert body is not None
    fields = re.findall(r"(\w+)$", body.group(1), re.MULTILINE)
    assert sorted(fields) == sorted(getattr(records, kind).__slots__)
    assert sorted(vars_of(kind)) == sorted(fields), "every field has a value from the start"


def vars_of(kind: str) -> list[str]:
    record = getattr(records, kind)()
    return [name for name in type(record).__slots__ if hasattr(record, name)]


def test_the_flags_of_a_slot_are_the_same_in_compiled_code() -> None:
    text = declarations("records.pxd")
    for name in ("AGGREGATED", "VNET", "NEEDS_CSUM"):
        assert re.search(rf"^    {name} = {getattr(records, name)}$", text, re.MULTILINE)


@pytest.mark.parametrize("module", [wire, records], ids=["wire", "records"])
def test_every_function_of_a_twin_exists_on_both_sides(module: object) -> None:
    name = module.__name__.rpartition(".")[2]
    text = declarations(f"{name}.pxd")
    functions = {
        function
        for function in module.__all__
        if callable(getattr(module, function)) and not isinstance(getattr(module, function), type)
    }
    in_c = set(re.findall(r"(\w+) (?:\"\w+\")?\(", text)) | set(re.findall(r"(\w+)\(", text))
    assert functions <= in_c
