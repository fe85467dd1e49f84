"""A pair of controllers and many agents, by their own cores, at scale: elections, followers, streams that break.

A seed decides all of it. `KVCAST_CLUSTER_SEEDS=4000-4999 pytest -m "" tests/sim/test_cluster.py` looks at other seeds
than the usual ones. The product has no domains of several switches yet: groups are racks with a namespace each.
"""

import os
from dataclasses import replace

import pytest

from kvproto.limits import MS
from tests.sim.simulated_cluster.checks import violations
from tests.sim.simulated_cluster.mix import ClusterMix

SEEDS_VARIABLE = "KVCAST_CLUSTER_SEEDS"


def seeds(usual: str) -> list[int]:
    first, _, last = os.environ.get(SEEDS_VARIABLE, usual).partition("-")
    return list(range(int(first), int(last or first) + 1))


def run(name: str, mix: ClusterMix) -> None:
    found = mix.problems()
    if found:
        again = f"{SEEDS_VARIABLE}={mix.setting.seed} pytest -m '' tests/sim/test_cluster.py -k {name}"
        lines = [again, repr(mix.setting), *sorted(mix.story, key=lambda line: int(line.split(" ")[0])), "->"]
        pytest.fail("\n  ".join([*lines, *found[:20]]), pytrace=False)


@pytest.mark.parametrize("seed", seeds("0-5"))
def test_4_groups_of_8_nodes(seed: int) -> None:
    run("4_groups", ClusterMix(seed, 4, 8, prompts=4, faults=8))


def test_the_checkers_see_what_is_wrong() -> None:
    mix = ClusterMix(3, 4, 8, prompts=1, faults=1)
    assert mix.problems() == []
    cluster = mix.cluster
    one = next(one for one in cluster.members if one.node.core.pool.ready_chunks())
    key = one.node.core.pool.ready_chunks()[0].key
    cluster.leader.core.directory.remove_copy(cluster.leader.core.nodes.named(one.node.name).index, key)
    cluster.roles.append(replace(cluster.roles[-1], controller="controller-9", until_ns=1 << 60))
    cluster.roles.append(replace(cluster.roles[-1], controller="controller-8"))
    one.link.epochs.append((1, 2))
    one.node.core.fetches.look_ups.absent[key] = None
    other = next(each for each in cluster.members if not each.pattern and each.node.core.pool.find(key) is None)
    other.engine.want(next(document for document in cluster.documents if key in document.keys), 1.0, None)
    cluster.kill(one)
    found = violations(cluster, frozenset())
    for words in ("is dead", "took a task of epoch 1", "was never answered", "in truth at", "leads at", "'s and "):
        assert any(words in line for line in found), (words, found)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds("6-999"))
def test_4_groups_of_8_nodes_more_seeds(seed: int) -> None:
    run("more_seeds", ClusterMix(seed, 4, 8, prompts=4, faults=8))


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds("0-99"))
def test_16_groups_of_32_nodes(seed: int) -> None:
    run("16_groups", ClusterMix(seed, 16, 32, prompts=2, faults=60, publish_ns=50 * MS))
