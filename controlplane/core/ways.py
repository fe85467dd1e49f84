"""The way that a fabric fans out, where `fabric.fanout` is auto: tries what its network does, and tells agents. Pure.

relay --trials say that groups work--> multicast --trials say that they do not--> relay, for a while whatever they say

Two trials in a row must say so: one may have been unlucky. Behind a kvcast switch nothing is tried, since it floods
groups that it does not know.
"""

from __future__ import annotations

from typing import Final

from controlplane.core.cluster import Cluster
from controlplane.core.examination.examinations import Examinations
from controlplane.core.examination.trial import Trial
from controlplane.core.leadership import Leadership
from controlplane.core.nodes import Node
from kvproto.fanout import Fanout
from kvproto.rpc import control_pb2 as rpc

TRY_NS: Final = 10_000_000_000
AGAIN_NS: Final = 1_000_000_000
"""After a trial that says something new, and as long as there are too few nodes for one."""
SURE: Final = 2
BARRED_NS: Final = 3_600_000_000_000
"""Groups that worked and then did not are not tried for so long."""


class Ways:
    """Owns what the trials said."""

    def __init__(self, cluster: Cluster, examinations: Examinations, leadership: Leadership) -> None:
        self._cluster = cluster
        self._examinations = examinations
        self._leadership = leadership
        self._trial: tuple[int, Trial] | None = None
        self._due_ns = 0
        self._surprises = 0
        """Trials in a row that spoke for the other way."""
        self._barred_until_ns = 0

    def look(self) -> None:
        """Begin a trial that is due, or draw the conclusion from one that has ended."""
        cluster = self._cluster
        if not cluster.options.fabric.is_auto or not self._leadership.leads:
            return
        if self._trial is not None:
            number, trial = self._trial
            if self._examinations.has_ended(number):
                self._trial = None
                self._judge(trial)
        elif cluster.now_ns >= self._due_ns and not self._examinations.phase:
            members = [one for one in cluster.nodes if one.attached and one.member is not None and not one.unreached]
            self._due_ns = cluster.now_ns + AGAIN_NS
            if len(members) > 1:
                self._trial = self._examinations.try_groups(members, standing=cluster.way.keeps)

    def _judge(self, trial: Trial) -> None:
        cluster, now_ns = self._cluster, self._cluster.now_ns
        standing = cluster.way.keeps
        problem = trial.seen.problem(standing=standing)
        self._due_ns = now_ns + TRY_NS
        if not trial.seen.listened:
            cluster.way_why = cluster.way_why or problem
            return
        is_barred = now_ns < self._barred_until_ns
        wanted = Fanout.RELAY if problem or is_barred else Fanout.MULTICAST
        if wanted is cluster.way:
            self._surprises = 0
            if not is_barred:
                cluster.way_why = problem or trial.seen.words
            return
        self._surprises += 1
        if self._surprises < SURE:
            self._due_ns = now_ns + AGAIN_NS
            return
        self._surprises = 0
        if standing:
            self._barred_until_ns = now_ns + BARRED_NS
        cluster.way, cluster.way_why = wanted, problem or trial.seen.words
        cluster.inform(f"casts go by {wanted.name.lower()} from now on: {cluster.way_why}")
        for node in cluster.nodes:
            if node.attached:
                cluster.send(node.session, rpc.ToAgent(membership=membership_of(cluster, node)))


def fanout_of(cluster: Cluster, node: Node) -> Fanout:
    """What an agent is told: of what it does not speak it hears nothing."""
    return cluster.way if cluster.way in node.facts.fanouts else Fanout.SWITCH


def membership_of(cluster: Cluster, node: Node) -> rpc.Membership:
    """A node's part in casts, by the fabric's way now."""
    fanout = fanout_of(cluster, node)
    told = rpc.Membership(
        fanout=rpc.Fanout.ValueType(fanout.value), unasked_weight=cluster.options.fabric.unasked_weight
    )
    if fanout.keeps and node.member is not None:
        told.member = node.member
    return told
