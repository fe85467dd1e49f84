"""Where nodes are: what they say to the switch, what it saw of them, and who has to know. Pure.

`NodeRegistry` decides what is believed; here its decisions reach the switch cache, the log and the agents.
"""

from __future__ import annotations

import hashlib

from controlplane.core.cluster import Cluster
from controlplane.core.ids import KEY_BYTES, NodeIndex
from controlplane.core.nodes import Node
from controlplane.core.publication import Publication
from controlplane.core.switch.entries import AddressEntry, PortMemberEntry
from controlplane.core.switch.target import Sighting
from controlplane.core.switch_cache.cache import SwitchCache
from controlplane.core.switch_link import SwitchLink
from kvproto.rpc import control_pb2 as rpc

_REMEDY = "Correct `nodes` in the controller's configuration, `data` in the agent's, or the cable"


class Places:
    """Owns what each node says to the switch, and who does not know yet what has become of its place there."""

    def __init__(self, cluster: Cluster, link: SwitchLink, switch_cache: SwitchCache, publication: Publication) -> None:
        self._cluster = cluster
        self._options = cluster.options
        self._nodes = cluster.nodes
        self._link = link
        self._programmer = link.programmer
        self._switch_cache = switch_cache
        self._publication = publication
        self._members_untold: set[NodeIndex] = set()
        """Nodes that do not know yet what has become of their place at the switch."""
        self._present_ns = 0
        """Since when the switch reports where nodes are, if it does."""

    def give_key(self, node: Node) -> None:
        """What the node says to the switch in this epoch. Another one later: an unprogrammed switch floods it."""
        if not self._link.present:
            node.here_key = b""
            return
        said = f"{node.facts.name}\0{node.session}\0{self._options.incarnation}\0{self._link.epoch}".encode()
        node.here_key = hashlib.blake2b(said, key=self._options.secret, digest_size=KEY_BYTES).digest()

    def switch_state(self, node: Node) -> rpc.SwitchState:
        """Whether there is a programmed switch, its epoch, and what this node says to it."""
        return rpc.SwitchState(present=self._link.present, epoch=self._link.epoch, here=node.here_key)

    def switch_programmed(self) -> None:
        """The switch has come to hold all that is wanted: from now on it reports where nodes are."""
        self._present_ns = self._cluster.now_ns
        for node in self._nodes:
            self.give_key(node)
            if node.attached:
                self._cluster.send(node.session, rpc.ToAgent(switch_state=self.switch_state(node)))

    def node_sighted(self, sighting: Sighting) -> bool:
        """The switch saw somebody say HERE. False: nobody has that key."""
        node = next((one for one in self._nodes if one.attached and one.here_key == sighting.key), None)
        if node is None:
            self._cluster.decisions["sightings_of_nobody"] += 1
            return False
        self._nodes.sighted(node, sighting.seen)
        return True

    def look_for_unseen(self) -> None:
        """Note who should have been seen by now."""
        self._nodes.look_for(self._cluster.now_ns, self._present_ns if self._link.present else None)

    def take_up_changes(self) -> None:
        """Tell everybody concerned where nodes were found to be."""
        for node in self._nodes.take_changed():
            name = node.facts.name
            self._switch_cache.port_lost(node.index)
            self._switch_cache.sources_changed()
            self._members_untold.add(node.index)
            if node.port_problem:
                self._cluster.warn(
                    f"node {name}: {node.port_problem}. No cast reaches it and it fills nothing; IP between nodes"
                    f" is not affected. {_REMEDY}"
                )
            else:
                self._cluster.decisions["sightings"] += 1
                self._cluster.inform(f"node {name} was seen on the data network: {place_words(node)}")

    def tell_members(self) -> None:
        """A node takes part as soon as the switch knows it, and no longer than it should."""
        for index in sorted(self._members_untold):
            node = self._nodes.get(index)
            if node is None:
                self._members_untold.discard(index)
                continue
            entry = None if node.port is None or node.member is None else PortMemberEntry(node.port, node.member)
            if entry is None or self._programmer.has(entry):
                self._members_untold.discard(index)
                self._publication.node_changed(index)
                if node.attached:
                    self._cluster.send(node.session, rpc.ToAgent(membership=rpc.Membership(member=node.member)))

    def is_programmed(self, node: Node) -> bool:
        """The switch has what makes the node a member, and knows the way to it: it floods nothing for it."""
        if node.port is None or node.member is None:
            return False
        entries = (PortMemberEntry(node.port, node.member), AddressEntry(node.facts.data_mac, node.port))
        return all(self._programmer.has(entry) for entry in entries)


def place_words(node: Node) -> str:
    """Where a node is, for the log."""
    member = "no member" if node.member is None else f"member {node.member}"
    return f"index {node.index}, {member}" + ("" if node.seen_port is None else f" at switch port {node.seen_port}")
