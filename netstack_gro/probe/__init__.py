"""What this kernel, user and interface can do for live dispatchers and sinks.

    report = probe("eth0")
    if report["UDP_GRO"].answer is Answer.YES: ...
    print(report.interface.features)

Everything is found out by trying it on a throw-away object: a socket that is bound to nothing, a
TUN device that is never up (in a network namespace of its own where that is permitted). Nothing
raises, and no right is needed: what is missing is part of the answer.
"""

import os
import platform
import sys
from dataclasses import replace

import netstack_gro
from netstack_gro.probe.interface import describe
from netstack_gro.probe.packet_sockets import packet_sockets
from netstack_gro.probe.report import (
    Ability,
    Answer,
    Feature,
    InterfaceReport,
    ReceiveBuffer,
    Report,
    Right,
)
from netstack_gro.probe.rights import read_rights
from netstack_gro.probe.trial import Question
from netstack_gro.probe.tun_devices import tun_devices
from netstack_gro.probe.udp_sockets import receive_buffer, udp_sockets

__all__ = [
    "Ability",
    "Answer",
    "Feature",
    "InterfaceReport",
    "ReceiveBuffer",
    "Report",
    "Right",
    "probe",
]

_GROUP = "dispatchers"

# What each dispatcher cannot do without.
_DISPATCHERS = {
    Question(
        "RecvMmsgDispatcher", _GROUP, "2.6.33", "packets of an interface (live --interface)"
    ): (
        "recvmmsg",
        "AF_PACKET",
    ),
    Question(
        "PacketRingDispatcher",
        _GROUP,
        "3.2",
        "packets of an interface, through a ring (live --ring)",
    ): ("AF_PACKET", "TPACKET_V3"),
    Question("TunDispatcher", _GROUP, "2.4", "packets of a TUN device (live --tun)"): (
        "/dev/net/tun",
        "TUNSETIFF",
    ),
    Question("UdpDispatcher", _GROUP, "2.6.33", "trains of a UDP socket (live --udp)"): (
        "recvmmsg",
    ),
}


def probe(interface: str | None = None) -> Report:
    """Find out what works here. interface: the name of one to describe as well."""
    system = platform.uname()
    report = Report(
        version=netstack_gro.__version__,
        engine="compiled" if netstack_gro.__compiled__ else "interpreted",
        system=system.system,
        release=system.release,
        user=os.geteuid() if hasattr(os, "geteuid") else None,
    )
    if sys.platform != "linux":
        problem = f"live dispatchers need Linux, this is {sys.platform}: captures can be replayed"
        return replace(report, problem=problem)
    admin, raw = read_rights()
    abilities = [
        *udp_sockets(),
        *packet_sockets(raw.name, raw.advice),
        *tun_devices(admin.effective, admin.name, admin.advice),
    ]
    return replace(
        report,
        rights=(admin, raw),
        abilities=(*_dispatchers(abilities), *abilities),
        receive_buffer=receive_buffer(),
        interface=None if interface is None else describe(interface),
    )


def _dispatchers(abilities: list[Ability]) -> list[Ability]:
    """Whether each dispatcher has what it needs."""
    answers = {each.name: each for each in abilities}
    found = []
    for question, needs in _DISPATCHERS.items():
        lacking = [answers[name] for name in needs if answers[name].answer is not Answer.YES]
        if lacking:
            first = lacking[0]
            detail = f"it needs {first.name}"
            if first.answer is Answer.NO and first.detail:
                detail = f"{first.name}: {first.detail}"
            found.append(question.answer(first.answer, detail, first.advice))
        else:
            found.append(question.answer(Answer.YES))
    return found
