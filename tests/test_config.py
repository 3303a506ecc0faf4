"""Configuration and limits: defaults, immutability, and errors that name the field."""

import dataclasses
import pickle
from typing import Any, get_args

import pytest

from netstack_gro.config import (
    UDP_TUNNEL_PORTS,
    UDP_TUNNEL_PORTS_EITHER,
    ChecksumState,
    GroConfig,
    IpIdMode,
    Limits,
    Link,
    port_map,
    within,
)
from netstack_gro.errors import ConfigError, GroError

INTEGERS: dict[str, tuple[int, int]] = {
    "capacity": (1, 65536),
    "max_size": (1, 65535),
    "max_tcp_segments": (1, 65535),
    "max_udp_segments": (1, 128),
    "max_frame": (1, 2 * 65535),
    "max_slabs": (1, 1024),
}
OPTIONAL = {"max_tcp_segments", "max_frame"}
WORDS = {
    "link": {"ip", "ipv4", "ipv6", "ethernet", "null", "loop", "sll", "sll2"},
    "received_checksums": {"verify", "trust"},
    "delivered_checksums": {"complete", "partial"},
    "fixed_ip_ids": {"merge", "df", "refuse"},
}
FLAGS = ("tcp", "udp")
PORTS = ("udp_tunnel_ports", "udp_tunnel_ports_either")
CLASSES: list[type[Any]] = [GroConfig, Limits]
FIELDS = [(kind, field.name) for kind in CLASSES for field in dataclasses.fields(kind)]


def refused(kind: type[Any], field: str, value: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        kind(**{field: value})
    error = caught.value
    assert error.field == field
    assert str(error).startswith(f"{field}: ")
    assert repr(value) in str(error)
    return error


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert dataclasses.asdict(GroConfig()) == {
        "link": "ip",
        "capacity": 1024,
        "tcp": True,
        "udp": False,
        "received_checksums": "verify",
        "delivered_checksums": "complete",
        "max_size": 65535,
        "max_frame": None,
        "max_tcp_segments": None,
        "max_udp_segments": 64,
        "fixed_ip_ids": "merge",
        "udp_tunnel_ports": frozenset({4789, 8472, 6080, 6081, 4754, 4755, 6635, 2152}),
        "udp_tunnel_ports_either": frozenset({4500}),
        "max_slabs": 8,
    }
    assert dataclasses.asdict(Limits()) == {
        "tcp": True,
        "udp": False,
        "max_size": 65535,
        "max_tcp_segments": None,
        "max_udp_segments": 64,
        "delivered_checksums": "complete",
        "fixed_ip_ids": "merge",
    }


def test_every_field_is_checked_by_these_tests() -> None:
    known = {*INTEGERS, *WORDS, *FLAGS, *PORTS}
    assert {name for _, name in FIELDS} == known
    assert set(get_args(Link)) == WORDS["link"]


@pytest.mark.parametrize("kind", CLASSES)
def test_fields_are_keywords_only(kind: type[Any]) -> None:
    with pytest.raises(TypeError):
        kind("ip")
    with pytest.raises(TypeError):
        kind(no_such_field=1)


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_cannot_be_changed(kind: type[Any], field: str) -> None:
    made = kind()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, field, getattr(made, field))
    with pytest.raises((AttributeError, TypeError)):
        made.another = 1


@pytest.mark.parametrize(("kind", "field"), [pair for pair in FIELDS if pair[1] in INTEGERS])
def test_an_integer_is_held_to_its_range(kind: type[Any], field: str) -> None:
    low, high = INTEGERS[field]
    for value in (low, high):
        assert getattr(kind(**{field: value}), field) == value
    for wrong in (low - 1, high + 1, -1, True, 1.0, "1", b"1"):
        refused(kind, field, wrong)
    if field in OPTIONAL:
        assert getattr(kind(**{field: None}), field) is None
    else:
        refused(kind, field, None)


@pytest.mark.parametrize(("kind", "field"), [pair for pair in FIELDS if pair[1] in WORDS])
def test_a_word_is_one_of_those_listed_and_the_error_lists_them(
    kind: type[Any], field: str
) -> None:
    for word in WORDS[field]:
        assert getattr(kind(**{field: word}), field) == word
    for wrong in ("", "Ethernet", " ip", None, 1, ["ip"], b"ip"):
        message = str(refused(kind, field, wrong))
        assert all(repr(word) in message for word in WORDS[field])


@pytest.mark.parametrize(("kind", "field"), [pair for pair in FIELDS if pair[1] in FLAGS])
def test_a_switch_is_a_bool_and_nothing_like_one(kind: type[Any], field: str) -> None:
    for wrong in (0, 1, None, "yes"):
        refused(kind, field, wrong)


@pytest.mark.parametrize("field", PORTS)
@pytest.mark.parametrize(
    "make", [list, tuple, set, frozenset, iter, lambda ports: (port for port in ports)]
)
def test_ports_come_in_any_collection_and_are_kept_as_a_set(field: str, make: Any) -> None:
    for ports in ([], [0], [53, 53, 65535]):
        kept = getattr(GroConfig(**{field: make(ports)}), field)
        assert type(kept) is frozenset
        assert kept == set(ports)


@pytest.mark.parametrize("field", PORTS)
def test_a_port_that_is_none_is_named_in_the_error(field: str) -> None:
    for port in (-1, 65536, True, "53", 1.5, None):
        ports: Any = [53, port]
        with pytest.raises(ConfigError, match=field) as caught:
            GroConfig(**{field: ports})
        assert repr(port) in str(caught.value)
    for wrong in ("53", b"53", 53, None):
        refused(GroConfig, field, wrong)


def test_configurations_are_values() -> None:
    config = GroConfig(link="ethernet", udp=True, udp_tunnel_ports=frozenset({1, 2}))
    same = GroConfig(link="ethernet", udp=True, udp_tunnel_ports=frozenset({2, 1}))
    assert config == same
    assert hash(config) == hash(same)
    assert dataclasses.replace(config, udp=False) != config
    assert pickle.loads(pickle.dumps(config)) == config
    assert pickle.loads(pickle.dumps(Limits(udp=True))) == Limits(udp=True)


def test_a_replaced_field_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="capacity"):
        dataclasses.replace(GroConfig(), capacity=0)


def test_a_config_error_is_a_value_error_and_one_of_ours() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, GroError)


def test_the_map_of_ports_says_destination_and_either_side() -> None:
    table = port_map(frozenset({1, 3}), frozenset({2, 3}))
    assert len(table) == 65536
    assert [table[port] for port in range(5)] == [0, 1, 2, 3, 0]
    assert sum(table) == 6


def test_the_port_lists_do_not_overlap() -> None:
    assert not UDP_TUNNEL_PORTS & UDP_TUNNEL_PORTS_EITHER


def test_values_of_published_enumerations_do_not_move() -> None:
    assert {state.name: state.value for state in ChecksumState} == {
        "UNKNOWN": 1,
        "VERIFIED": 2,
        "PARTIAL": 3,
    }
    assert {mode.name: mode.value for mode in IpIdMode} == {"NONE": 0, "FIXED": 1, "INCREMENT": 2}


def test_an_integer_is_within_its_bounds_or_refused_by_name() -> None:
    assert [within("batch", value, 1, 8) for value in (1, 8)] == [1, 8]
    for wrong in (0, 9, True, 1.0, "1", None):
        with pytest.raises(ConfigError, match=r"^batch: "):
            within("batch", wrong, 1, 8)
