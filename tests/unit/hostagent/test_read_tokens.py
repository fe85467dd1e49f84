"""Tokens for reads: signed by a controller, checked by a holder, by the controller's time."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from controlplane.core.nodes import NodeFacts
from controlplane.core.read_access import ReadTokens
from hostagent.transport.read_tokens import Admitted, Refusal, TokenBook
from kvproto.grants import NamespaceRules
from kvproto.probes import PROBE_NAMESPACE
from kvproto.rpc import control_pb2 as pb
from kvproto.rpc.read_tokens import pack_shown, unpack_token

LIFETIME_S = 600
READER = socket.inet_aton("10.75.0.1")
RULES = NamespaceRules({"acme/*": ["n1", "n2"], "acme/secret*": ["n2"], "globex": ["n3"]})
FACTS = NodeFacts(
    name="n1",
    incarnation=1,
    data_ip=READER,
    data_mac=bytes(6),
    read_endpoint="10.75.0.1:4790",
    control_port=4793,
    switch_port=None,
    pool_bytes=1,
    segment_bytes=frozenset(),
)


def mint(number: int = 1) -> ReadTokens:
    return ReadTokens(bytes([number]) * 32, LIFETIME_S * 1000, RULES)


def access(tokens: ReadTokens, now_s: float, facts: NodeFacts = FACTS) -> pb.ReadAccess:
    return tokens.access_of(facts, int(now_s * 1e9)).read_access


def book(*said: pb.ReadAccess, now_s: float = 0.0) -> TokenBook:
    made = TokenBook(demands=True)
    made.controller_connected(now_s, gives_tokens=True)
    for one in said:
        made.access_given(one, now_s)
    return made


def shown(*said: pb.ReadAccess) -> bytes:
    return pack_shown([one.token for one in said])


def test_a_good_token_opens_for_its_node_until_it_ends() -> None:
    controller = mint()
    holder = book(access(controller, 1000.0))
    verdict = holder.check(shown(access(controller, 1000.0)), READER, 100.0)
    assert isinstance(verdict, Admitted)
    assert (verdict.node, verdict.good_for_s) == ("n1", pytest.approx(500.0))
    assert verdict.grant.allows("acme/llama")
    assert verdict.grant.allows("acme/secret"), "one rule that names the node is enough"
    assert verdict.grant.allows("of nobody")
    assert verdict.grant.allows(PROBE_NAMESPACE)
    assert not verdict.grant.allows("globex")
    assert holder.check(shown(access(controller, 1000.0)), READER, 600.1) is Refusal.EXPIRED


def test_what_is_shown_by_somebody_else_or_was_changed_is_refused() -> None:
    controller = mint()
    holder, said = book(access(controller, 0.0)), access(controller, 0.0)
    assert holder.check(shown(said), socket.inet_aton("10.75.0.2"), 0.0) is Refusal.WRONG_TOKEN
    assert holder.check(b"", READER, 0.0) is Refusal.NO_TOKEN
    assert holder.check(b"\xff" * 40, READER, 0.0) is Refusal.WRONG_TOKEN
    assert holder.check(pack_shown([said.token] * 5), READER, 0.0) is Refusal.WRONG_TOKEN
    longer = dataclasses.replace(unpack_token(said.token.token), expires_ms=10**12).pack()
    forged = pb.SignedReadToken(token=longer, signature=said.token.signature)
    assert holder.check(pack_shown([forged]), READER, 0.0) is Refusal.WRONG_TOKEN
    assert holder.check(shown(access(mint(2), 0.0)), READER, 0.0) is Refusal.UNKNOWN_CONTROLLER
    other_key = dataclasses.replace(unpack_token(access(mint(2), 0.0).token.token), verify_key=said.verify_key).pack()
    forged = pb.SignedReadToken(token=other_key, signature=access(mint(2), 0.0).token.signature)
    assert holder.check(pack_shown([forged]), READER, 0.0) is Refusal.WRONG_TOKEN


def test_clocks_of_machines_do_not_matter_and_none_of_them_is_asked() -> None:
    controller = mint()
    holder = book(access(controller, 5.0), now_s=80_000.0)
    verdict = holder.check(shown(access(controller, 5.0)), READER, 80_010.0)
    assert isinstance(verdict, Admitted)
    assert verdict.good_for_s == pytest.approx(LIFETIME_S - 10)


def test_while_the_controller_is_away_time_stands_still() -> None:
    controller = mint()
    holder, token = book(access(controller, 0.0)), shown(access(controller, 0.0))
    holder.controller_lost(590.0)
    assert isinstance(holder.check(token, READER, 10_000.0), Admitted)
    holder.controller_connected(20_000.0, gives_tokens=True)
    assert isinstance(holder.check(token, READER, 20_009.0), Admitted)
    assert holder.check(token, READER, 20_011.0) is Refusal.EXPIRED


def test_a_failover_interrupts_nobody_whoever_attaches_first() -> None:
    old, new = mint(1), mint(2)
    reader, holder = book(access(old, 0.0)), book(access(old, 0.0))
    reader.controller_lost(10.0)
    reader.controller_connected(12.0, gives_tokens=True)
    reader.access_given(access(new, 7000.0), 12.0)
    assert isinstance(holder.check(reader.shown, READER, 12.0), Admitted), "the old token still opens"
    newcomer = book(access(new, 7000.0), now_s=12.0)
    assert isinstance(newcomer.check(reader.shown, READER, 12.0), Admitted), "and the new one where only it is known"
    reader.access_given(access(new, 7700.0), 700.0)
    assert reader.shown == shown(access(new, 7700.0)), "what has expired is not shown"


def test_a_controller_that_gives_no_tokens_is_not_asked_for_any() -> None:
    old_release = TokenBook(demands=True)
    old_release.controller_connected(0.0, gives_tokens=False)
    assert not old_release.demands
    with pytest.raises(ValueError, match="32 bytes"):
        old_release.access_given(pb.ReadAccess(verify_key=b"short"), 0.0)
