"""Action profiles and selectors: members, groups, one-shot sets, and who refers to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.journal import Journal
from p4switch.server.limits import GROUP_SLOTS_MAX
from p4switch.server.schema import ActionSpec, ProfileSpec, Schema, Scope
from p4switch.server.status import already_exists, denied, exhausted, invalid, not_found, precondition, unimplemented
from p4switch.server.target_pipeline import Pipeline
from p4switch.server.translate import check_port, decode_action, decode_port, encode_action
from p4switch.values import ActionCall, EntryAction, GroupRef, MemberRef, WeightedMember

UPDATE = p4r.Update

_V = TypeVar("_V")


class PortView(Protocol):
    """What watch ports need to know about the switch's ports."""

    def exists(self, port: int) -> bool:
        """Whether the switch has the port."""
        ...


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a group. `watch` is the port whose liveness counts, None for always."""

    member: int
    weight: int
    watch: int | None
    message: bytes
    """As the client wrote it, for reading back."""


@dataclass(frozen=True, slots=True)
class Group:
    """A selector group."""

    members: tuple[GroupMember, ...]
    max_size: int


@dataclass(slots=True)
class _Profile:
    """Members and groups that the pipeline holds. Either the client made them all, or one-shot entries did
    (`private`): the specification forbids a mixture."""

    spec: ProfileSpec
    actions: dict[int, ActionSpec]
    default_only: frozenset[int]
    members: dict[int, ActionCall] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    member_users: Counter[int] = field(default_factory=Counter)
    group_users: Counter[int] = field(default_factory=Counter)
    private: set[int] = field(default_factory=set)
    next_private: int = 1


class Profiles:
    """All action profiles of a pipeline."""

    def __init__(self, schema: Schema, pipeline: Pipeline, ports: PortView) -> None:
        self._schema = schema
        self._pipeline = pipeline
        self._ports = ports
        self._profiles = {spec.id: _open(schema, spec) for spec in schema.profiles.values()}

    # -- members ---------------------------------------------------------------------------------

    def write_member(self, kind: int, message: p4r.ActionProfileMember, journal: Journal) -> None:
        """INSERT, MODIFY or DELETE a member."""
        profile = self._profile(message.action_profile_id)
        member = message.member_id
        name = f"action profile {profile.spec.name}"
        if member == 0:
            raise invalid(f"{name}: member id 0 is reserved")
        if kind != UPDATE.INSERT and (member not in profile.members or profile.private):
            raise not_found(f"{name} has no member {member}")
        if kind == UPDATE.DELETE:
            if profile.member_users[member] or any(
                member == m.member for g in profile.groups.values() for m in g.members
            ):
                raise precondition(f"{name}: member {member} is used by a group or a table entry")
            self._drop_member(profile, member, journal)
            return
        if not message.HasField("action"):
            raise invalid(f"{name}: member {member} has no action")
        call = self._call(profile, message.action)
        if kind == UPDATE.INSERT:
            self._refuse_mixing(profile, one_shot=False)
            if member in profile.members:
                raise already_exists(f"{name} has member {member} already")
            if profile.spec.size and len(profile.members) >= profile.spec.size:
                raise exhausted(f"{name} is full: {profile.spec.size} members")
        self._put_member(profile, member, call, journal)

    def read_members(self, query: p4r.ActionProfileMember) -> Iterator[p4r.Entity]:
        """Members of one profile or (id 0) of all; member id 0 means all of them."""
        for profile in self._selected(query.action_profile_id):
            if profile.private:
                continue
            for member in _selected_keys(
                profile.members, query.member_id, f"action profile {profile.spec.name} has no member"
            ):
                call = profile.members[member]
                message = p4r.ActionProfileMember(action_profile_id=profile.spec.id, member_id=member)
                message.action.CopyFrom(encode_action(self._schema.action_by_index[call.action], call))
                yield p4r.Entity(action_profile_member=message)

    # -- groups ----------------------------------------------------------------------------------

    def write_group(self, kind: int, message: p4r.ActionProfileGroup, journal: Journal) -> None:
        """INSERT, MODIFY or DELETE a group."""
        profile = self._profile(message.action_profile_id)
        group_id = message.group_id
        name = f"action profile {profile.spec.name}"
        if not profile.spec.selector:
            raise invalid(f"{name} has no selector: it has no groups")
        if group_id == 0:
            raise invalid(f"{name}: group id 0 is reserved")
        old = None if profile.private else profile.groups.get(group_id)
        if kind != UPDATE.INSERT and old is None:
            raise not_found(f"{name} has no group {group_id}")
        if kind == UPDATE.DELETE:
            if profile.group_users[group_id]:
                raise precondition(f"{name}: group {group_id} is used by a table entry")
            self._drop_group(profile, group_id, journal)
            return
        group = Group(tuple(self._group_member(m) for m in message.members), message.max_size)
        what = f"{name}: group {group_id}"
        _check_group(profile.spec, group, what)
        for m in group.members:
            if m.member not in profile.members:
                raise not_found(f"{what}: no member {m.member}")
        if old is None:
            self._refuse_mixing(profile, one_shot=False)
        elif kind == UPDATE.INSERT:
            raise already_exists(f"{name} has group {group_id} already")
        elif old.max_size != group.max_size:
            raise invalid(f"{what}: max_size cannot change from {old.max_size} to {group.max_size}")
        self._put_group(profile, group_id, group, journal)

    def read_groups(self, query: p4r.ActionProfileGroup) -> Iterator[p4r.Entity]:
        """Groups of one selector or (id 0) of all; group id 0 means all of them."""
        for profile in self._selected(query.action_profile_id):
            if profile.private:
                continue
            for group_id in _selected_keys(
                profile.groups, query.group_id, f"action profile {profile.spec.name} has no group"
            ):
                group = profile.groups[group_id]
                message = p4r.ActionProfileGroup(
                    action_profile_id=profile.spec.id, group_id=group_id, max_size=group.max_size
                )
                for m in group.members:
                    message.members.add().MergeFromString(m.message)
                yield p4r.Entity(action_profile_group=message)

    # -- for table entries -----------------------------------------------------------------------

    def target(self, profile_id: int, action: p4r.TableAction, owner: str, journal: Journal) -> EntryAction:
        """What an entry of an indirect table points at; a one-shot set becomes a private group."""
        profile = self._profiles[profile_id]
        kind = action.WhichOneof("type")
        if kind == "action_profile_member_id":
            self._refuse_mixing(profile, one_shot=False)
            if action.action_profile_member_id not in profile.members:
                raise not_found(f"{owner}: no member {action.action_profile_member_id} in {profile.spec.name}")
            return MemberRef(action.action_profile_member_id)
        if kind == "action_profile_group_id" and profile.spec.selector:
            self._refuse_mixing(profile, one_shot=False)
            if action.action_profile_group_id not in profile.groups:
                raise not_found(f"{owner}: no group {action.action_profile_group_id} in {profile.spec.name}")
            return GroupRef(action.action_profile_group_id)
        if kind == "action_profile_action_set" and profile.spec.selector:
            return self._one_shot(profile, action.action_profile_action_set, owner, journal)
        raise invalid(f"{owner} is implemented by {profile.spec.name}: {kind or 'an empty action'} is no action for it")

    def canonical(self, profile_id: int, action: p4r.TableAction) -> bytes:
        """A one-shot set as it is read back: serialized, values in their shortest form; empty for other actions."""
        if action.WhichOneof("type") != "action_profile_action_set":
            return b""
        kept = p4r.ActionProfileActionSet()
        kept.CopyFrom(action.action_profile_action_set)
        for item in kept.action_profile_actions:
            spec, call = decode_action(self._profiles[profile_id].actions, item.action, "one-shot set")
            item.action.CopyFrom(encode_action(spec, call))
        return kept.SerializeToString(deterministic=True)

    def count_user(self, profile_id: int, target: EntryAction, change: int) -> None:
        """A table entry points at `target` from now on (+1), or no more (-1)."""
        profile = self._profiles[profile_id]
        if isinstance(target, MemberRef):
            profile.member_users[target.member] += change
        elif isinstance(target, GroupRef):
            profile.group_users[target.group] += change

    def discard_one_shot(self, profile_id: int, target: EntryAction, journal: Journal) -> None:
        """Remove the private group of an entry that is gone or points elsewhere now."""
        profile = self._profiles[profile_id]
        if not isinstance(target, GroupRef) or target.group not in profile.private:
            return
        group = profile.groups[target.group]
        self._drop_group(profile, target.group, journal)
        for m in group.members:
            self._drop_member(profile, m.member, journal)
        profile.private.discard(target.group)
        journal.record(lambda: profile.private.add(target.group))

    def _one_shot(
        self, profile: _Profile, action_set: p4r.ActionProfileActionSet, owner: str, journal: Journal
    ) -> GroupRef:
        self._refuse_mixing(profile, one_shot=True)
        if action_set.action_selection_mode or action_set.size_semantics:
            raise unimplemented(f"{owner}: overriding the selector of {profile.spec.name} is not supported")
        calls, members = [], []
        first = profile.next_private
        for n, item in enumerate(action_set.action_profile_actions):
            calls.append(self._call(profile, item.action))
            members.append(GroupMember(first + n, item.weight, self._watch(item), b""))
        group = Group(tuple(members), 0)
        _check_one_shot(profile.spec, group, owner)
        profile.next_private = group_id = first + len(members)
        profile.next_private += 1
        for member, call in zip(members, calls, strict=True):
            self._put_member(profile, member.member, call, journal)
        self._put_group(profile, group_id, group, journal)
        profile.private.add(group_id)
        journal.record(lambda: profile.private.discard(group_id))
        return GroupRef(group_id)

    # -- primitives, each with its inverse in the journal ----------------------------------------

    def _put_member(self, profile: _Profile, member: int, call: ActionCall, journal: Journal) -> None:
        old = profile.members.get(member)
        self._pipeline.set_member(profile.spec.index, member, call)
        profile.members[member] = call
        if old is None:
            journal.record(lambda: self._drop_member(profile, member, Journal()))
        else:
            journal.record(lambda: self._put_member(profile, member, old, Journal()))

    def _drop_member(self, profile: _Profile, member: int, journal: Journal) -> None:
        self._pipeline.delete_member(profile.spec.index, member)
        call = profile.members.pop(member)
        journal.record(lambda: self._put_member(profile, member, call, Journal()))

    def _put_group(self, profile: _Profile, group_id: int, group: Group, journal: Journal) -> None:
        old = profile.groups.get(group_id)
        self._pipeline.set_group(profile.spec.index, group_id, _weighted(group))
        profile.groups[group_id] = group
        if old is None:
            journal.record(lambda: self._drop_group(profile, group_id, Journal()))
        else:
            journal.record(lambda: self._put_group(profile, group_id, old, Journal()))

    def _drop_group(self, profile: _Profile, group_id: int, journal: Journal) -> None:
        self._pipeline.delete_group(profile.spec.index, group_id)
        group = profile.groups.pop(group_id)
        journal.record(lambda: self._put_group(profile, group_id, group, Journal()))

    # -- helpers ---------------------------------------------------------------------------------

    def _profile(self, profile_id: int) -> _Profile:
        profile = self._profiles.get(profile_id)
        if profile is None:
            raise invalid(f"no action profile {profile_id:#010x}")
        return profile

    def _selected(self, profile_id: int) -> Iterable[_Profile]:
        return [self._profile(profile_id)] if profile_id else self._profiles.values()

    def _call(self, profile: _Profile, action: p4r.Action) -> ActionCall:
        spec, call = decode_action(profile.actions, action, f"action profile {profile.spec.name}")
        if spec.id in profile.default_only:
            raise denied(f"action profile {profile.spec.name}: action {spec.name} is for default entries only")
        return call

    def _refuse_mixing(self, profile: _Profile, *, one_shot: bool) -> None:
        if one_shot and profile.members and not profile.private:
            raise invalid(
                f"action profile {profile.spec.name} holds members and groups: one-shot sets cannot be mixed in"
            )
        if not one_shot and profile.private:
            raise invalid(
                f"action profile {profile.spec.name} holds one-shot sets: members and groups cannot be mixed in"
            )

    def _group_member(self, message: p4r.ActionProfileGroup.Member) -> GroupMember:
        kept = p4r.ActionProfileGroup.Member()
        kept.CopyFrom(message)
        return GroupMember(
            message.member_id, message.weight, self._watch(message), kept.SerializeToString(deterministic=True)
        )

    def _watch(self, message: p4r.ActionProfileGroup.Member | p4r.ActionProfileAction) -> int | None:
        kind = message.WhichOneof("watch_kind")
        if kind == "watch_port" and message.watch_port:
            port = decode_port(message.watch_port, "watch_port")
        elif kind == "watch" and message.watch > 0:
            port = check_port(message.watch, "watch")
        else:
            return None
        if not self._ports.exists(port):
            raise invalid(f"watch port {port} does not exist")
        return port


def _open(schema: Schema, spec: ProfileSpec) -> _Profile:
    """The actions that a profile's members may have: those of its tables."""
    actions: dict[int, ActionSpec] = {}
    default_only = set()
    for table in schema.tables.values():
        if table.profile == spec.id:
            actions |= {id_: schema.actions[id_] for id_ in table.actions}
            default_only |= {id_ for id_, scope in table.actions.items() if scope is Scope.DEFAULT}
    return _Profile(spec, actions, frozenset(default_only))


def _weighted(group: Group) -> list[WeightedMember]:
    """A disallowed weight (0) counts one."""
    return [WeightedMember(m.member, m.weight or 1, m.watch) for m in group.members]


def _check_group(spec: ProfileSpec, group: Group, what: str) -> None:
    """A client's group. Source: P4Runtime specification, "Rules on Setting max_size"."""
    _check_weights(spec, group, what)
    least = 1 if spec.max_group_size else 0
    if group.max_size < least or (spec.max_group_size and group.max_size > spec.max_group_size):
        most = spec.max_group_size or "any size"
        raise invalid(f"{what}: max_size {group.max_size} is not within {least} to {most}")
    size = _size(spec, group)
    if group.max_size and size > group.max_size:
        raise exhausted(f"{what}: size {size} is above {group.max_size}")
    _check_room(size, what)


def _check_one_shot(spec: ProfileSpec, group: Group, what: str) -> None:
    """A set of actions that an entry brings along. Source: as above, "One Shot Action Selector Programming"."""
    _check_weights(spec, group, what)
    size = _size(spec, group)
    if spec.max_group_size and size > spec.max_group_size:
        raise invalid(f"{what}: the size of the set, {size}, is above {spec.max_group_size}")
    _check_room(size, what)


def _check_weights(spec: ProfileSpec, group: Group, what: str) -> None:
    if len({m.member for m in group.members}) != len(group.members):
        raise invalid(f"{what}: a member is given twice; use its weight")
    for m in group.members:
        if (m.weight != 0) if spec.weights_disallowed else (m.weight <= 0):
            raise invalid(f"{what}: weight {m.weight} of member {m.member} is not allowed")
        if spec.max_member_weight and m.weight > spec.max_member_weight:
            raise invalid(f"{what}: weight {m.weight} is above {spec.max_member_weight}")


def _size(spec: ProfileSpec, group: Group) -> int:
    return len(group.members) if spec.weighted_by_members else sum(m.weight or 1 for m in group.members)


def _check_room(size: int, what: str) -> None:
    if size > GROUP_SLOTS_MAX:
        raise exhausted(f"{what}: size {size} is above {GROUP_SLOTS_MAX}")


def _selected_keys(objects: dict[int, _V], key: int, missing: str) -> list[int]:
    """All keys, or the one asked for; NOT_FOUND when it is not there."""
    if key == 0:
        return list(objects)
    if key not in objects:
        raise not_found(f"{missing} {key}")
    return [key]
