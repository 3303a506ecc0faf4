"""The VPN: what it refuses, and what it carries."""

import os
import random
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from examples.vpn.session import DATA, HELLO_SIZE, OVERHEAD, WINDOW, Greeting, Session, Window
from tests import transfer
from tests.requirements import lacks_tun, require
from tests.vpn_net import SECRET, carried

pytestmark = pytest.mark.engineless  # what it is about is the same at either speed

PACKETS = [bytes([n]) * 100 for n in range(8)]


def pair() -> tuple[Session, Session]:
    mine, theirs = os.urandom(32), os.urandom(32)
    return Session(SECRET, mine, theirs), Session(SECRET, theirs, mine)


# --- the window ----------------------------------------------------------------------------------


def test_each_counter_is_taken_once_in_any_order_within_the_window() -> None:
    window = Window()
    for counter in (5, 3, 4, 0, WINDOW + 4):
        assert window.is_new(counter)
        window.note(counter)
        assert not window.is_new(counter)
    assert not window.is_new(4)  # too old to tell
    assert window.is_new(6)
    window.note(10 * WINDOW)
    assert not window.is_new(9 * WINDOW)
    assert window.is_new(9 * WINDOW + 1)


def test_the_window_agrees_with_a_set() -> None:
    chooser = random.Random(1)
    window, seen, newest = Window(), set[int](), -1
    for _ in range(20000):
        counter = max(0, newest + chooser.randrange(-2 * WINDOW, 40))
        new = counter not in seen and newest - counter < WINDOW
        assert window.is_new(counter) == new
        if new:
            window.note(counter)
            seen.add(counter)
            newest = max(newest, counter)


# --- a session -----------------------------------------------------------------------------------


def test_what_one_end_seals_the_other_opens_in_both_directions() -> None:
    for here, there in (pair(), pair()[::-1]):
        assert there.open(here.seal(PACKETS)) == PACKETS
        assert here.open(there.seal(PACKETS)) == PACKETS
        assert here.refused == there.refused == 0


def test_no_two_datagrams_are_alike() -> None:
    here, _ = pair()
    sealed = here.seal([b"same"] * 50) + here.seal([b"same"] * 50)
    assert len(set(sealed)) == 100
    assert {len(datagram) for datagram in sealed} == {4 + OVERHEAD}


def test_a_bit_changed_anywhere_is_refused() -> None:
    here, there = pair()
    [sealed] = here.seal([b"packet"])
    for place in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[place // 8] ^= 1 << place % 8
        assert there.open([bytes(changed)]) == []
    assert there.refused == len(sealed) * 8
    assert there.open([sealed]) == [b"packet"]


def test_what_was_opened_is_refused_when_it_comes_again_and_late_ones_are_not() -> None:
    here, there = pair()
    sealed = here.seal(PACKETS)
    assert there.open(sealed[4:]) == PACKETS[4:]
    assert there.open(sealed) == PACKETS[:4]
    assert there.open(sealed) == []
    assert there.refused == 4 + 8


def test_what_is_too_old_to_tell_is_refused() -> None:
    here, there = pair()
    old, *rest = here.seal([b"x"] * (WINDOW + 1))
    there.open(rest)
    assert there.open([old]) == []


@pytest.mark.parametrize("junk", [b"", b"\1", bytes(OVERHEAD - 1), bytes(2000), DATA + bytes(40)])
def test_junk_is_refused(junk: bytes) -> None:
    _, there = pair()
    assert there.open([junk]) == []
    assert there.refused == 1


def test_a_session_of_another_secret_or_of_other_bytes_opens_nothing() -> None:
    mine, theirs = os.urandom(32), os.urandom(32)
    sealed = Session(SECRET, mine, theirs).seal(PACKETS)
    assert Session(bytes(32), theirs, mine).open(sealed) == []
    assert Session(SECRET, theirs, os.urandom(32)).open(sealed) == []
    assert Session(SECRET, mine, theirs).open(sealed) == []  # one's own, reflected


# --- a greeting ----------------------------------------------------------------------------------


def greet(one: Greeting, other: Greeting) -> None:
    said: bytes | None = one.hello()
    ends = [other, one]
    while said is not None:
        assert len(said) == HELLO_SIZE
        said = ends[0].hear(said)
        ends.reverse()


def test_two_that_know_the_secret_have_a_session() -> None:
    one, other = Greeting(SECRET), Greeting(SECRET)
    greet(one, other)
    assert one.session is not None
    assert other.session is not None
    assert other.session.open(one.session.seal(PACKETS)) == PACKETS


def test_one_that_was_started_anew_gets_a_session_with_other_keys() -> None:
    one, other = Greeting(SECRET), Greeting(SECRET)
    greet(one, other)
    assert other.session is not None
    assert one.session is not None
    former = one.session.seal(PACKETS)
    again = Greeting(SECRET)
    greet(again, other)
    assert again.session is not None
    assert other.session.open(former) == []
    assert other.session.open(again.session.seal(PACKETS)) == PACKETS


def test_an_old_hello_played_again_changes_nothing() -> None:
    one, other = Greeting(SECRET), Greeting(SECRET)
    old = one.hello()
    greet(one, other)
    session = other.session
    stranger = Greeting(SECRET)
    foreign = stranger.hello()
    for hello in (old, foreign, old):
        other.hear(hello)
    assert other.session is session


def test_a_hello_that_is_not_genuine_is_refused() -> None:
    greeting = Greeting(SECRET)
    for junk in (Greeting(bytes(32)).hello(), b"", bytes(HELLO_SIZE), greeting.hello()[:-1]):
        assert greeting.hear(junk) is None
    assert greeting.refused == 4
    assert greeting.session is None


# --- two networks --------------------------------------------------------------------------------

SIZE = 8 << 20


def said(child: Any) -> str:
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=10)
    assert child.returncode == 0
    return str(output)


@pytest.mark.parametrize("options", [[], ["--plain"]], ids=["merged", "plain"])
def test_tcp_is_carried_whole_in_both_directions(tmp_path: Path, options: list[str]) -> None:
    require(lacks_tun())
    with carried(tmp_path, *options) as (net, (here, there), children):
        before = [end.counters() for end in (here, there)]
        ways = [(here, there, "10.0.0.2"), (there, here, "10.0.0.1"), (here, there, "fd00::2")]
        for sender, receiver, address in ways:
            done = transfer.run(net, sender, receiver, address, SIZE, seed=1)
            assert done.digest_received == done.digest_sent
            assert done.received == SIZE
        for end, former in zip((here, there), before, strict=True):
            now = end.counters()
            assert now["TcpInErrs"] == former["TcpInErrs"]
            assert now["TcpInCsumErrors"] == former["TcpInCsumErrors"]
            traffic = end.traffic("vpn0")
            assert (traffic["rx_bytes"] > 2000 * traffic["rx_packets"]) == (not options)
        for child in children:
            output = said(child)
            assert "refused 0 datagrams" in output
            assert (", 0 trains" in output) == bool(options)


def test_a_device_that_is_deleted_ends_it_with_a_message(tmp_path: Path) -> None:
    require(lacks_tun())
    with carried(tmp_path) as (_net, (here, _there), children):
        here.delete("vpn0")
        assert children[0].wait(10) == 1


def test_what_is_tampered_with_or_replayed_is_refused_and_counted(tmp_path: Path) -> None:
    require(lacks_tun())
    with carried(tmp_path) as (net, (here, there), children):
        with there.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0x0008) as tap:
            tap.settimeout(5)
            tap.bind(("eth0", 0x0800))
            transfer.run(net, here, there, "10.0.0.2", 1000, seed=1)
            heard: list[bytes] = []
            while len(heard) < 3:  # of the first end's datagrams, as an eavesdropper gets them
                packet = tap.recv(1 << 16)
                body = packet[28:]
                if packet[9] == 17 and packet[12:16] == b"\xc0\0\x02\x01" and body[:1] == DATA:
                    heard.append(body)
        with here.socket(socket.AF_INET, socket.SOCK_DGRAM) as injected:
            for body in heard:
                injected.sendto(body, ("192.0.2.2", 5000))
                injected.sendto(body[:-1] + bytes([body[-1] ^ 1]), ("192.0.2.2", 5000))
                injected.sendto(body[:20], ("192.0.2.2", 5000))
        done = transfer.run(net, here, there, "10.0.0.2", 100_000, seed=2)
        assert done.digest_received == done.digest_sent
        assert "refused 9 datagrams" in said(children[1])
