"""The examples do what they say."""

import signal
import subprocess

import pytest

from tests import lab, transfer
from tests.requirements import lacks_tun, require

SIZE = 8 << 20


@pytest.mark.parametrize("arguments", [["--wire"], []], ids=["wire", "super-packets"])
def test_forward_carries_tcp_between_two_tun_devices_and_says_what_was_merged(
    arguments: list[str],
) -> None:
    require(lacks_tun())
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        child = net.start(
            here, "examples.forward", *arguments, "left", "right", stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "carrying between left and right\n"
        here.up("left")  # whose first packets find the other one down
        here.address("left", "192.0.2.1/24", "2001:db8::1/64")
        here.move("right", there)
        there.up("right")
        there.address("right", "192.0.2.2/24", "2001:db8::2/64")
        for address in ("192.0.2.2", "2001:db8::2"):
            done = transfer.run(net, here, there, address, SIZE, seed=1)
            assert done.digest_received == done.digest_sent
        traffic = there.traffic("right")
        assert traffic["rx_bytes"] > traffic["rx_packets"] * 1500
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate(timeout=10)
        assert child.returncode == 0
        left, right = said.splitlines()
        assert left.startswith("left: ")
        assert right.startswith("right: ")
        assert (" 0 of them merged" not in left) == ("--wire" in arguments)
