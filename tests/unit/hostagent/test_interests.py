"""What this node's engines use, by the tenants that they are of."""

from __future__ import annotations

from hostagent.core import effects
from hostagent.core.events import EngineId
from hostagent.core.membership import Interests
from hostagent.core.options import CoreOptions
from tests.unit.hostagent.core_harness import PAGE
from tests.unit.hostagent.node_harness import make_node


def made() -> tuple[Interests, list[effects.Effect]]:
    said: list[effects.Effect] = []
    options = CoreOptions(PAGE, PAGE, tenant_namespaces={"acme": "acme", "globex-batch": "globex"})
    return Interests(make_node(options, said.append)), said


def test_the_tenants_of_the_engines_decide_and_the_last_ones_count() -> None:
    interests, said = made()
    assert interests.current is None, "before any engine has come"
    interests.engine_connected(EngineId(1), "acme")
    interests.engine_connected(EngineId(2), "globex-batch")
    assert interests.current == ("acme/*", "globex/*")
    interests.engine_connected(EngineId(3), "user-1000")
    interests.engine_disconnected(EngineId(3))
    interests.engine_disconnected(EngineId(2))
    interests.engine_disconnected(EngineId(1))
    interests.engine_disconnected(EngineId(1))
    patterns = [("acme/*",), ("acme/*", "globex/*"), None, ("acme/*", "globex/*"), ("acme/*",)]
    assert said == [effects.ReportInterests(one) for one in patterns]
    assert interests.current == ("acme/*",)


def test_no_name_leads_into_another_tenants_namespace() -> None:
    interests, _ = made()
    assert interests.namespace("acme", "llama") == "acme/llama"
    assert interests.namespace("acme", "globex/llama") == "acme/globex/llama"
    assert interests.namespace("globex-batch", "") == "globex/"
    assert interests.namespace("user-1000", "llama") == "llama"
    assert interests.namespace("user-1000", "globex/llama") == "user-1000/globex/llama"
    assert interests.namespace("user-1000", "globex") == "user-1000/globex"
    assert len(interests.namespace("acme", "é" * 128).encode()) <= 256
