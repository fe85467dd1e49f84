"""Whose words make a node unreached: several who speak for themselves, and never one alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.core.nodes import Graces, Node, NodeFacts, NodeRegistry
from controlplane.core.reachability import REACHED_NS, WORD_NS, Reachability

FACTS = NodeFacts("n0", 1, bytes(4), bytes(6), "", 4793, None, 1, frozenset())


class Cluster:
    def __init__(self, count: int, speakers: dict[int, str] | None = None) -> None:
        self.registry = NodeRegistry(Graces(1, 1, 1), with_switch=False)
        self.words = Reachability(self.registry)
        self.nodes: list[Node] = [
            self.registry.hello(n, replace(FACTS, name=f"n{n}", speaker=(speakers or {}).get(n, f"host{n}")), 0)
            for n in range(count)
        ]

    def said(self, *words: tuple[int, int, bool], now_ns: int = 0) -> set[str]:
        """(reader, node, reached); who is unreached after these."""
        for reader, node, reached in words:
            self.words.told(self.nodes[reader], self.nodes[node].index, now_ns, reached=reached)
        self.words.look(now_ns)
        return {node.facts.name for node in self.nodes if node.unreached}


def test_two_who_do_not_reach_it_are_enough() -> None:
    cluster = Cluster(4)
    assert cluster.said((0, 3, False)) == set()
    assert cluster.said((0, 3, False)) == set(), "the same one again"
    assert cluster.said((1, 3, False)) == {"n3"}
    assert cluster.words.speakers(cluster.nodes[3]) == ["n0", "n1"]
    # It is itself cut off, and says so of all others: nobody believes it.
    assert cluster.said((3, 0, False), (3, 1, False), (3, 2, False), (2, 0, False)) == {"n3"}


@pytest.mark.parametrize("count", [2, 3, 4, 64])
def test_a_liar_puts_nobody_out_alone(count: int) -> None:
    cluster = Cluster(count)
    for now_ns in range(0, 3 * WORD_NS, WORD_NS // 3):
        for victim in range(1, count):
            assert cluster.said((0, victim, False), (0, 0, False), now_ns=now_ns) == set()


def test_one_host_with_two_names_speaks_once() -> None:
    cluster = Cluster(5, {0: "liar", 1: "liar"})
    assert cluster.said((0, 4, False), (1, 4, False)) == set()
    assert cluster.said((2, 4, False)) == {"n4"}


def test_two_readers_whose_links_are_dead_blame_nobody() -> None:
    cluster = Cluster(6)
    assert cluster.said(*((reader, node, False) for reader in (0, 1) for node in range(2, 6))) == set()
    # Others do not reach them either.
    assert cluster.said((2, 0, False), (3, 0, False), (2, 1, False), (4, 1, False)) == {"n0", "n1"}


def test_whoever_reaches_it_speaks_for_it() -> None:
    cluster = Cluster(4)
    assert cluster.said((0, 3, False), (1, 3, False)) == {"n3"}
    assert cluster.said((2, 3, True), now_ns=1) == set()
    assert cluster.said((0, 3, False), (1, 3, False), now_ns=REACHED_NS // 2) == set()
    assert cluster.said((0, 3, False), now_ns=REACHED_NS + 1) == {"n3"}


def test_words_are_forgotten() -> None:
    cluster = Cluster(4)
    assert cluster.said((0, 3, False), (1, 3, False)) == {"n3"}
    assert cluster.said((0, 3, False), now_ns=WORD_NS - 1) == {"n3"}
    assert cluster.said(now_ns=WORD_NS) == set(), "only one has said it again"
    assert cluster.said(now_ns=3 * WORD_NS) == set()
    assert [cluster.words.speakers(node) for node in cluster.nodes] == [[]] * 4, "nothing is kept"


def test_a_node_that_is_forgotten_is_spoken_of_no_more() -> None:
    cluster = Cluster(4)
    cluster.said((0, 3, False), (1, 3, False))
    cluster.words.forget(cluster.nodes[3].index)
    cluster.nodes[3].unreached = False
    assert cluster.said() == set()
    assert cluster.said((0, 3, False)) == set()
    cluster.words.forget(cluster.nodes[0].index)
    assert cluster.said((1, 3, False)) == set()


def test_words_of_nodes_that_are_gone_do_not_count() -> None:
    cluster = Cluster(4)
    cluster.said((0, 3, False))
    cluster.registry.stream_ended(0, 1)
    assert cluster.said((1, 3, False), now_ns=1) == set()
