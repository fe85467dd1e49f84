"""A member that says what operators had set: only what a controller has signed is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.core.events import Requested
from kvdaemon.identity import Role
from kvdaemon.seals import Seals
from kvdaemon.tls import Certificates
from kvproto.rpc import control_pb2 as rpc
from tests.certificates import Pki
from tests.unit.controlplane.helpers import Scene, key, record

pytestmark = pytest.mark.security


def seals(pki: Pki, name: str, role: Role, node: str = "") -> Seals:
    return Seals(Certificates(pki.files(name), role, node), role)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki.make(tmp_path / "tls")


def of_controller(pki: Pki) -> Seals:
    return seals(pki, "controller", Role.CONTROLLER)


def last_state(scene: Scene, session: int) -> rpc.OperatorState:
    return [one.operator_state for one in scene.sent[session] if one.HasField("operator_state")][-1]


def draining(scene: Scene) -> set[str]:
    return {node.facts.name for node in scene.core.nodes if node.draining}


def test_a_member_drains_nobody_and_fills_no_switch_by_what_it_says_to_remember(pki: Pki) -> None:
    scene = Scene(seals=of_controller(pki))
    scene.up()
    for number in (1, 2):
        scene.attach(number, [record("a")])
    forged = rpc.OperatorState(revision=1 << 40, drained=["n1", "n2"], switch_pins=[key("a")])
    scene.attach(3, operator_state=forged)
    assert draining(scene) == set()
    assert not scene.core.operator_state.switch_pins
    assert scene.core.decisions["operator_state_unsigned"] == 1
    assert [line for line in scene.warned if "n3 repeats wishes of operators" in line]
    assert scene.core.nodes.named("n3") is not None, "it is a member as before"


def test_what_a_controller_has_signed_outlives_it(pki: Pki) -> None:
    old = Scene(seals=of_controller(pki))
    for number in (1, 2):
        old.attach(number)
    old.ask(Requested("drain", rpc.DrainRequest(node="n1")))
    old.advance()
    kept = last_state(old, 2)
    assert kept.signature

    successor = Scene(seals=of_controller(pki), incarnation=2000)
    successor.attach(1)
    successor.attach(2, operator_state=kept)
    assert draining(successor) == {"n1"}

    changed = rpc.OperatorState()
    changed.CopyFrom(kept)
    changed.drained.append("n2")
    wary = Scene(seals=of_controller(pki), incarnation=3000)
    wary.attach(2)
    wary.attach(1, operator_state=changed)
    assert draining(wary) == set()


def test_the_signature_of_another_role_or_authority_is_none(pki: Pki, tmp_path: Path) -> None:
    content = b"what operators set"
    controller = of_controller(pki)
    assert controller.holds(content, *controller.seal(content))
    assert not controller.holds(content + b"!", *controller.seal(content))
    assert not controller.holds(content, *seals(pki, "agent/n1", Role.AGENT, "n1").seal(content))
    assert not controller.holds(content, *of_controller(Pki.make(tmp_path / "others")).seal(content))
    signature, certificate = controller.seal(content)
    for wrong in (b"", b"no PEM", certificate[:-200], bytes(100_000)):
        assert not controller.holds(content, signature, wrong)
    assert not controller.holds(content, b"", certificate)
    assert not controller.holds(content, signature[:-1], certificate)


def test_signatures_are_renewed_before_the_certificate_ends(pki: Pki) -> None:
    scene = Scene(seals=of_controller(pki), read_token_ms=4000)
    scene.attach(1)
    scene.ask(Requested("drain", rpc.DrainRequest(node="n1")))
    scene.advance()
    signed = [one for one in scene.sent[1] if one.operator_state.signature]
    scene.wait(2.0)
    assert len([one for one in scene.sent[1] if one.operator_state.signature]) > len(signed)
