"""The everyday commands of simple_switch_CLI, each as requests of P4Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from p4switch.bmv2 import typed_values as values
from p4switch.bmv2.client import Client, RefusedError
from p4switch.bmv2.info_names import Names
from p4switch.bmv2.profile_commands import USAGES as PROFILE_USAGES
from p4switch.bmv2.profile_commands import Profiles, id_of
from p4switch.proto import p4data_pb2 as p4d
from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.bytestring import encode_unsigned

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
MICROSECONDS = 10**6
"""A second's: bmv2's rates of meters are packets or bytes a microsecond."""

HANDLE = b"handle "
"""Begins the metadata that entries of this console carry, so that the next console calls them the same."""


@dataclass(slots=True)
class Node:
    """A node of multicast trees that the console has made: its copies go to `ports` with replication id `rid`."""

    rid: int
    ports: tuple[int, ...]
    groups: set[int] = field(default_factory=set)


class Commands:
    """What can be typed. Each method prints by `say`, and raises RefusedError."""

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self._names = Names(client.p4info)
        self._handles: dict[int, dict[bytes, int]] = {}
        """By table, and what an entry matches: the number by which it goes here."""
        self._nodes: dict[int, Node] = {}
        self.profiles = Profiles(client, self._names, say)

    def run(self, words: Sequence[str]) -> None:
        """One command. Raises RefusedError."""
        command = COMMANDS.get(words[0])
        if command is None and words[0] in ELSEWHERE:
            raise RefusedError(f"{words[0]}: P4Runtime has no such request: {ELSEWHERE[words[0]]}")
        if command is None:
            raise RefusedError(f"{words[0]}: not one of this console's commands (see help)")
        needed = command.usage.split()
        least = sum(not w.startswith("[") for w in needed)
        if len(words) - 1 < least or (len(words) - 1 > len(needed) and "..." not in command.usage):
            raise RefusedError(f"usage: {words[0]} {command.usage}".rstrip())
        command.method(command.owner(self), *words[1:])

    # -- tables ----------------------------------------------------------------------------------

    def show_tables(self) -> None:
        for table in self._names.p4info.tables:
            keys = ", ".join(
                f"{f.name}({values.Kind.Name(f.match_type).lower()}, {f.bitwidth})" for f in table.match_fields
            )
            self._say(f"{table.preamble.name:<30} [{keys}]")

    def show_actions(self) -> None:
        for action in self._names.p4info.actions:
            self._show_action(action)

    def table_show_actions(self, name: str) -> None:
        for ref in self._names.table(name).action_refs:
            self._show_action(self._names.actions_by_id[ref.id])

    def _show_action(self, action: p4i.Action) -> None:
        params = ", ".join(f"{p.name}({p.bitwidth})" for p in action.params)
        self._say(f"{action.preamble.name:<30} [{params}]")

    def table_info(self, name: str) -> None:
        table = self._names.table(name)
        self._say(f"{table.preamble.name}: room for {table.size} entries")
        for match in table.match_fields:
            self._say(f"key: {match.name}, {values.Kind.Name(match.match_type).lower()}, {match.bitwidth} bits")
        for ref in table.action_refs:
            self._say(f"action: {self._names.actions_by_id[ref.id].preamble.name}")

    def table_add(self, name: str, action: str, *rest: str) -> None:
        table = self._names.table(name)
        keys, params = _split(rest)
        info = self._names.action_of(table, action)
        entry, params = self._prioritized(table, keys, params, len(info.params))
        entry.action.action.CopyFrom(values.action(info, params))
        self._insert(table, entry)

    def table_indirect_add(self, name: str, *rest: str) -> None:
        entry, member = self._indirect(name, rest)
        entry.action.action_profile_member_id = id_of(member)
        self._insert(self._names.table(name), entry)

    def table_indirect_add_with_group(self, name: str, *rest: str) -> None:
        entry, group = self._indirect(name, rest)
        entry.action.action_profile_group_id = id_of(group)
        self._insert(self._names.table(name), entry)

    def _indirect(self, name: str, rest: Sequence[str]) -> tuple[p4r.TableEntry, str]:
        keys, words = _split(rest)
        entry, words = self._prioritized(self._names.table(name), keys, words, 1)
        if len(words) != 1:
            raise RefusedError("after => comes the handle of a member or group")
        return entry, words[0]

    def _prioritized(
        self, table: p4i.Table, keys: Sequence[str], words: Sequence[str], before: int
    ) -> tuple[p4r.TableEntry, Sequence[str]]:
        """The key, with the priority that follows `before` words where the table has one; and those words."""
        entry = self._key(table, keys)
        if not any(f.match_type in _PRIORITIZED for f in table.match_fields):
            return entry, words
        if len(words) != before + 1:
            raise RefusedError(f"table {table.preamble.name} needs a priority after the action's parameters")
        entry.priority = values.PRIORITY_MAX - values.number(words[-1])
        return entry, words[:-1]

    def _insert(self, table: p4i.Table, entry: p4r.TableEntry) -> None:
        handles = self._known(table)
        handle = _smallest_free(handles)
        entry.metadata = HANDLE + str(handle).encode()
        self._client.write([(INSERT, p4r.Entity(table_entry=entry))])
        handles[_key_of(entry)] = handle
        self._say(f"Entry has been added with handle {handle}")

    def table_modify(self, name: str, action: str, handle: str, *params: str) -> None:
        table = self._names.table(name)
        entry = self._entry(table, handle)
        texts = [p for p in params if p != "=>"]
        entry.action.action.CopyFrom(values.action(self._names.action_of(table, action), texts))
        self._client.write([(MODIFY, p4r.Entity(table_entry=entry))])

    def table_set_timeout(self, name: str, handle: str, milliseconds: str) -> None:
        entry = self._entry(self._names.table(name), handle)
        entry.idle_timeout_ns = values.number(milliseconds) * 10**6
        self._client.write([(MODIFY, p4r.Entity(table_entry=entry))])

    def table_delete(self, name: str, handle: str) -> None:
        table = self._names.table(name)
        entry = self._entry(table, handle)
        self._client.write([(DELETE, p4r.Entity(table_entry=entry))])
        del self._known(table)[_key_of(entry)]

    def table_clear(self, name: str) -> None:
        table = self._names.table(name)
        entries = list(self._entries(table))
        if entries:
            self._client.write([(DELETE, p4r.Entity(table_entry=entry)) for entry in entries])
        self._handles.pop(table.preamble.id, None)

    def table_set_default(self, name: str, action: str, *params: str) -> None:
        table = self._names.table(name)
        call = values.action(self._names.action_of(table, action), [p for p in params if p != "=>"])
        entry = _default(table)
        entry.action.action.CopyFrom(call)
        self._client.write([(MODIFY, p4r.Entity(table_entry=entry))])

    def table_reset_default(self, name: str) -> None:
        self._client.write([(MODIFY, p4r.Entity(table_entry=_default(self._names.table(name))))])

    def table_num_entries(self, name: str) -> None:
        self._say(str(sum(1 for _ in self._entries(self._names.table(name)))))

    def table_dump(self, name: str) -> None:
        table = self._names.table(name)
        self._say("==========\nTABLE ENTRIES")
        for entry in self._entries(table):
            self._dump(table, entry)
        self._say("==========\nDumping default entry")
        for found in self._client.read(p4r.Entity(table_entry=_default(table))):
            self._say(f"Action entry: {self._shown_action(found.table_entry)}")
        self._say("==========")

    def table_dump_entry(self, name: str, handle: str) -> None:
        table = self._names.table(name)
        self._dump(table, self._entry(table, handle))

    def table_dump_entry_from_key(self, name: str, *words: str) -> None:
        table = self._names.table(name)
        count = len(table.match_fields)
        wanted, _ = self._prioritized(table, words[:count], words[count:], 0)
        for entry in self._entries(table):
            if _key_of(entry) == _key_of(wanted):
                return self._dump(table, entry)
        raise RefusedError(f"{table.preamble.name} has no entry with this key")

    def _dump(self, table: p4i.Table, entry: p4r.TableEntry) -> None:
        self._say(f"**********\nDumping entry {self._known(table)[_key_of(entry)]:#x}\nMatch key:")
        for match in table.match_fields:
            self._say(f"* {match.name:<20}: {values.shown_match(entry, match)}")
        if entry.priority:
            self._say(f"Priority: {values.PRIORITY_MAX - entry.priority}")
        self._say(f"Action entry: {self._shown_action(entry)}")

    def _shown_action(self, entry: p4r.TableEntry) -> str:
        match entry.action.WhichOneof("type"):
            case "action":
                call = entry.action.action
                return values.shown_action(call, self._names.actions_by_id[call.action_id])
            case "action_profile_member_id":
                return f"member {entry.action.action_profile_member_id - 1}"
            case "action_profile_group_id":
                return f"group {entry.action.action_profile_group_id - 1}"
        return "none"

    def _key(self, table: p4i.Table, texts: Sequence[str]) -> p4r.TableEntry:
        if len(texts) != len(table.match_fields):
            raise RefusedError(
                f"table {table.preamble.name} has {len(table.match_fields)} key fields, not {len(texts)}"
            )
        found = [values.match(text, one) for text, one in zip(texts, table.match_fields, strict=True)]
        return p4r.TableEntry(table_id=table.preamble.id, match=[one for one in found if one is not None])

    def _entries(self, table: p4i.Table) -> Iterator[p4r.TableEntry]:
        """All of a table, each with a handle from here on."""
        query = p4r.Entity(table_entry=p4r.TableEntry(table_id=table.preamble.id))
        entries = [found.table_entry for found in self._client.read(query)]
        before = self._handles.get(table.preamble.id, {})
        here = {_key_of(entry): entry for entry in entries}
        handles = {key: handle for key, handle in before.items() if key in here}
        taken = set(handles.values())
        for key, entry in here.items():
            own = entry.metadata.removeprefix(HANDLE)
            if key not in handles and entry.metadata.startswith(HANDLE) and own.isdigit() and int(own) not in taken:
                handles[key] = int(own)
                taken.add(int(own))
        for key in here:
            if key not in handles:
                handles[key] = _smallest_free(handles)
        self._handles[table.preamble.id] = handles
        yield from entries

    def _known(self, table: p4i.Table) -> dict[bytes, int]:
        """Handles of a table's entries, as far as this console has seen them."""
        if table.preamble.id not in self._handles:
            for _ in self._entries(table):
                pass
        return self._handles[table.preamble.id]

    def _entry(self, table: p4i.Table, handle: str) -> p4r.TableEntry:
        wanted = values.number(handle)
        for entry in self._entries(table):
            if self._handles[table.preamble.id][_key_of(entry)] == wanted:
                return entry
        raise RefusedError(f"Invalid table operation (BAD_HANDLE): {table.preamble.name} has no entry {wanted}")

    # -- counters, meters, registers -------------------------------------------------------------

    def counter_read(self, name: str, index: str) -> None:
        self._counter(name, index, None)

    def counter_write(self, name: str, index: str, packets: str, octets: str) -> None:
        self._counter(
            name, index, p4r.CounterData(packet_count=values.number(packets), byte_count=values.number(octets))
        )

    def counter_reset(self, name: str) -> None:
        if _is_direct(self._names.p4info.direct_counters, name):
            table = self._names.table_by_id(self._names.find("direct_counters", name).direct_table_id)
            entries = [p4r.DirectCounterEntry(table_entry=e, data=p4r.CounterData()) for e in self._entries(table)]
            self._client.write([(MODIFY, p4r.Entity(direct_counter_entry=entry)) for entry in entries])
            return
        counter = self._names.find("counters", name)
        entry = p4r.CounterEntry(counter_id=counter.preamble.id, data=p4r.CounterData())
        self._client.write([(MODIFY, p4r.Entity(counter_entry=entry))])

    def _counter(self, name: str, index: str, data: p4r.CounterData | None) -> None:
        if _is_direct(self._names.p4info.direct_counters, name):
            table = self._names.table_by_id(self._names.find("direct_counters", name).direct_table_id)
            key = self._entry(table, index)
            direct = p4r.DirectCounterEntry(
                table_entry=p4r.TableEntry(table_id=key.table_id, match=key.match, priority=key.priority)
            )
            entity = p4r.Entity(direct_counter_entry=direct)
        else:
            cell = p4r.Index(index=values.number(index))
            counter = self._names.find("counters", name)
            entity = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=counter.preamble.id, index=cell))
        if data is not None:
            _counted(entity).data.CopyFrom(data)
            self._client.write([(MODIFY, entity)])
            return
        for found in self._client.read(entity):
            count = _counted(found).data
            self._say(f"{name}[{index}]= ({count.byte_count} bytes, {count.packet_count} packets)")

    def register_read(self, name: str, index: str | None = None) -> None:
        register = self._names.find("registers", name)
        query = p4r.RegisterEntry(register_id=register.preamble.id)
        if index is not None:
            query.index.index = values.number(index)
        cells = [_shown_data(e.register_entry.data) for e in self._client.read(p4r.Entity(register_entry=query))]
        shown = f"{register.preamble.name}[{index}]" if index is not None else register.preamble.name
        self._say(f"{shown}= {', '.join(cells)}")

    def register_write(self, name: str, index: str, value: str) -> None:
        self._register(name, p4r.Index(index=values.number(index)), values.number(value))

    def register_reset(self, name: str) -> None:
        self._register(name, None, 0)

    def _register(self, name: str, index: p4r.Index | None, value: int) -> None:
        register = self._names.find("registers", name)
        data = p4d.P4Data(bitstring=encode_unsigned(value))
        entry = p4r.RegisterEntry(register_id=register.preamble.id, index=index, data=data)
        self._client.write([(MODIFY, p4r.Entity(register_entry=entry))])

    def meter_set_rates(self, name: str, index: str, *rates: str) -> None:
        if _is_direct(self._names.p4info.direct_meters, name):
            table = self._names.table_by_id(self._names.find("direct_meters", name).direct_table_id)
            key = self._entry(table, index)
            direct = p4r.DirectMeterEntry(
                table_entry=p4r.TableEntry(table_id=key.table_id, match=key.match, priority=key.priority),
                config=_rates(rates),
            )
            self._client.write([(MODIFY, p4r.Entity(direct_meter_entry=direct))])
            return
        self._meter(name, p4r.Index(index=values.number(index)), rates)

    def meter_array_set_rates(self, name: str, *rates: str) -> None:
        self._meter(name, None, rates)

    def _meter(self, name: str, index: p4r.Index | None, rates: Sequence[str]) -> None:
        meter = self._names.find("meters", name)
        entry = p4r.MeterEntry(meter_id=meter.preamble.id, index=index, config=_rates(rates))
        self._client.write([(MODIFY, p4r.Entity(meter_entry=entry))])

    def meter_get_rates(self, name: str, index: str) -> None:
        meter = self._names.find("meters", name)
        cell = p4r.Index(index=values.number(index))
        query = p4r.MeterEntry(meter_id=meter.preamble.id, index=cell)
        for found in self._client.read(p4r.Entity(meter_entry=query)):
            config = found.meter_entry.config
            self._say(f"0: info rate = {config.cir / MICROSECONDS}, burst size = {config.cburst}")
            self._say(f"1: info rate = {config.pir / MICROSECONDS}, burst size = {config.pburst}")

    # -- copies of packets -----------------------------------------------------------------------

    def mc_mgrp_create(self, group: str) -> None:
        self._group(INSERT, values.number(group))

    def mc_mgrp_destroy(self, group: str) -> None:
        number = values.number(group)
        self._group(DELETE, number)
        for node in self._nodes.values():
            node.groups.discard(number)

    def mc_node_create(self, rid: str, *ports: str) -> None:
        if "|" in ports:
            raise RefusedError("link aggregation groups of multicast nodes are not supported: name the ports")
        handle = _smallest_free({n: n for n in self._nodes})
        self._nodes[handle] = Node(values.number(rid), tuple(values.number(p) for p in ports))
        self._say(f"node was created with handle {handle}")

    def mc_node_update(self, handle: str, *ports: str) -> None:
        node = self._node(handle)
        node.ports = tuple(values.number(p) for p in ports)
        for group in sorted(node.groups):
            self._group(MODIFY, group)

    def mc_node_destroy(self, handle: str) -> None:
        node = self._node(handle)
        del self._nodes[values.number(handle)]
        for group in sorted(node.groups):
            self._group(MODIFY, group)

    def mc_node_associate(self, group: str, handle: str) -> None:
        node = self._node(handle)
        node.groups.add(values.number(group))
        try:
            self._group(MODIFY, values.number(group))
        except RefusedError:
            node.groups.discard(values.number(group))
            raise

    def mc_node_dissociate(self, group: str, handle: str) -> None:
        self._node(handle).groups.discard(values.number(group))
        self._group(MODIFY, values.number(group))

    def mc_dump(self) -> None:
        for found in self._client.read(_copies(multicast_group_entry=p4r.MulticastGroupEntry())):
            group = found.packet_replication_engine_entry.multicast_group_entry
            copies = ", ".join(f"(rid {r.instance}, port {_port(r)})" for r in group.replicas)
            self._say(f"mgrp({group.multicast_group_id}) -> {copies}")

    def mirroring_add(self, session: str, port: str) -> None:
        self._mirror(session, [p4r.Replica(port=encode_unsigned(values.number(port)))])

    def mirroring_add_mc(self, session: str, group: str) -> None:
        wanted = p4r.MulticastGroupEntry(multicast_group_id=values.number(group))
        for found in self._client.read(_copies(multicast_group_entry=wanted)):
            self._mirror(session, found.packet_replication_engine_entry.multicast_group_entry.replicas)

    def mirroring_delete(self, session: str) -> None:
        entry = p4r.CloneSessionEntry(session_id=values.number(session))
        self._client.write([(DELETE, _copies(clone_session_entry=entry))])

    def mirroring_get(self, session: str) -> None:
        wanted = p4r.CloneSessionEntry(session_id=values.number(session))
        for found in self._client.read(_copies(clone_session_entry=wanted)):
            clone = found.packet_replication_engine_entry.clone_session_entry
            self._say(f"session {clone.session_id}: ports {', '.join(str(_port(r)) for r in clone.replicas)}")

    def _node(self, handle: str) -> Node:
        node = self._nodes.get(values.number(handle))
        if node is None:
            raise RefusedError(f"no node {handle} that this console has made")
        return node

    def _group(self, kind: p4r.Update.Type.ValueType, group: int) -> None:
        copies = [
            p4r.Replica(port=encode_unsigned(port), instance=node.rid)
            for node in self._nodes.values()
            if group in node.groups
            for port in node.ports
        ]
        entry = p4r.MulticastGroupEntry(multicast_group_id=group, replicas=[] if kind == DELETE else copies)
        self._client.write([(kind, _copies(multicast_group_entry=entry))])

    def _mirror(self, session: str, replicas: Any) -> None:
        number = values.number(session)
        known = self._client.read(_copies(clone_session_entry=p4r.CloneSessionEntry()))
        kind = INSERT
        for found in known:
            if found.packet_replication_engine_entry.clone_session_entry.session_id == number:
                kind = MODIFY
        self._client.write(
            [(kind, _copies(clone_session_entry=p4r.CloneSessionEntry(session_id=number, replicas=replicas)))]
        )


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what follows its name, words in brackets may be left out, `...`: as many as one likes."""

    usage: str
    method: Callable[..., None]
    owner: Callable[[Commands], object] = lambda commands: commands


COMMANDS: dict[str, Command] = {
    name: Command(usage, getattr(Commands, name))
    for name, usage in {
        "show_tables": "",
        "show_actions": "",
        "table_info": "TABLE",
        "table_show_actions": "TABLE",
        "table_add": "TABLE ACTION [MATCH...] [=>] [PARAMETER...] [PRIORITY]",
        "table_modify": "TABLE ACTION HANDLE [=>] [PARAMETER...]",
        "table_set_timeout": "TABLE HANDLE MILLISECONDS",
        "table_delete": "TABLE HANDLE",
        "table_clear": "TABLE",
        "table_set_default": "TABLE ACTION [PARAMETER...]",
        "table_reset_default": "TABLE",
        "table_num_entries": "TABLE",
        "table_dump": "TABLE",
        "table_dump_entry": "TABLE HANDLE",
        "table_dump_entry_from_key": "TABLE [MATCH...] [PRIORITY]",
        "table_indirect_add": "TABLE [MATCH...] => MEMBER [PRIORITY]",
        "table_indirect_add_with_group": "TABLE [MATCH...] => GROUP [PRIORITY]",
        "counter_read": "COUNTER INDEX",
        "counter_write": "COUNTER INDEX PACKETS BYTES",
        "counter_reset": "COUNTER",
        "register_read": "REGISTER [INDEX]",
        "register_write": "REGISTER INDEX VALUE",
        "register_reset": "REGISTER",
        "meter_set_rates": "METER INDEX RATE:BURST [RATE:BURST...]",
        "meter_array_set_rates": "METER RATE:BURST [RATE:BURST...]",
        "meter_get_rates": "METER INDEX",
        "mc_mgrp_create": "GROUP",
        "mc_mgrp_destroy": "GROUP",
        "mc_node_create": "RID [PORT...]",
        "mc_node_update": "NODE [PORT...]",
        "mc_node_destroy": "NODE",
        "mc_node_associate": "GROUP NODE",
        "mc_node_dissociate": "GROUP NODE",
        "mc_dump": "",
        "mirroring_add": "SESSION PORT",
        "mirroring_add_mc": "SESSION GROUP",
        "mirroring_delete": "SESSION",
        "mirroring_get": "SESSION",
    }.items()
}
COMMANDS["table_indirect_delete"] = COMMANDS["table_delete"]
COMMANDS |= {
    name: Command(usage, getattr(Profiles, name), lambda commands: commands.profiles)
    for name, usage in PROFILE_USAGES.items()
}

ELSEWHERE = {
    "set_queue_rate": "start the switch with --port-option PORT:rate=10mbit, or change it by --admin",
    "set_queue_depth": "start the switch with --port-option PORT:depth=64, or change it by --admin",
    "port_add": "its --admin socket does it (add_port)",
    "port_remove": "its --admin socket does it (remove_port)",
    "show_ports": "p4switch stats, or its --admin socket, lists them",
    "load_new_config_file": "set the pipeline by P4Runtime",
    "swap_configs": "set the pipeline by P4Runtime",
    "write_config_to_file": "the switch has the file that p4c-bm2-ss wrote",
    "serialize_state": "state begins empty",
    "reset_state": "start the switch anew",
    "get_time_elapsed": "p4switch stats prints it",
    "mc_set_lag_membership": "name the ports of a node",
    **dict.fromkeys(
        ("set_crc16_parameters", "set_crc32_parameters", "set_toeplitz_hash_key"),
        "name crc16_custom's or crc32_custom's numbers in the program",
    ),
    **dict.fromkeys(
        ("table_indirect_set_default", "table_indirect_set_default_with_group", "table_indirect_reset_default"),
        "a table with an action profile has the program's default action",
    ),
}
"""Commands of bmv2's console that have no request of P4Runtime, and what does the same."""

_PRIORITIZED = (values.Kind.TERNARY, values.Kind.RANGE, values.Kind.OPTIONAL)


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Before and after `=>`; without one all are the key's."""
    if "=>" not in words:
        return words, ()
    at = words.index("=>")
    return words[:at], words[at + 1 :]


def _key_of(entry: p4r.TableEntry) -> bytes:
    fields = sorted(entry.match, key=lambda one: one.field_id)
    return p4r.TableEntry(match=fields, priority=entry.priority).SerializeToString(deterministic=True)


def _smallest_free(handles: dict[Any, int]) -> int:
    taken = set(handles.values())
    return next(n for n in range(len(taken) + 1) if n not in taken)


def _default(table: p4i.Table) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)


def _is_direct(among: Any, name: str) -> bool:
    return any(
        o.preamble.name == name or o.preamble.alias == name or o.preamble.name.endswith(f".{name}") for o in among
    )


def _counted(entity: p4r.Entity) -> p4r.CounterEntry | p4r.DirectCounterEntry:
    return entity.counter_entry if entity.HasField("counter_entry") else entity.direct_counter_entry


def _rates(texts: Sequence[str]) -> p4r.MeterConfig:
    """`RATE:BURST` once or twice: committed and peak. Raises RefusedError."""
    pairs = [text.partition(":") for text in texts]
    if len(pairs) == 1:
        pairs *= 2
    try:
        (cir, _, cburst), (pir, _, pburst) = pairs
        return p4r.MeterConfig(
            cir=round(float(cir) * MICROSECONDS),
            cburst=int(cburst),
            pir=round(float(pir) * MICROSECONDS),
            pburst=int(pburst),
        )
    except ValueError:
        raise RefusedError(f"{' '.join(texts)}: write RATE:BURST, once or twice") from None


def _shown_data(data: p4d.P4Data) -> str:
    match data.WhichOneof("data"):
        case "bitstring":
            return str(int.from_bytes(data.bitstring, "big"))
        case "bool":
            return str(int(data.bool))
    return str(data).replace("\n", " ").strip()


def _copies(**entry: Any) -> p4r.Entity:
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(**entry))


def _port(replica: p4r.Replica) -> int:
    return int.from_bytes(replica.port, "big") if replica.port else replica.egress_port
