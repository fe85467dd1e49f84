"""Commands of simple_switch_CLI for action profiles, selectors' groups and parser value sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p4switch.bmv2 import typed_values as values
from p4switch.bmv2.client import Client, RefusedError
from p4switch.bmv2.info_names import Names
from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE

USAGES = {
    "act_prof_create_member": "PROFILE ACTION [PARAMETER...]",
    "act_prof_modify_member": "PROFILE ACTION MEMBER [=>] [PARAMETER...]",
    "act_prof_delete_member": "PROFILE MEMBER",
    "act_prof_create_group": "PROFILE",
    "act_prof_delete_group": "PROFILE GROUP",
    "act_prof_add_member_to_group": "PROFILE MEMBER GROUP",
    "act_prof_remove_member_from_group": "PROFILE MEMBER GROUP",
    "act_prof_dump": "PROFILE",
    "act_prof_dump_member": "PROFILE MEMBER",
    "act_prof_dump_group": "PROFILE GROUP",
    "show_pvs": "",
    "pvs_get": "SET",
    "pvs_add": "SET VALUE",
    "pvs_remove": "SET VALUE",
    "pvs_clear": "SET",
}


def id_of(handle: str) -> int:
    """A member's or group's id in P4Runtime, where 0 is none: bmv2's handles begin there. Raises RefusedError."""
    return values.number(handle) + 1


def _smallest_free_id(taken: set[int]) -> int:
    return next(n for n in range(1, len(taken) + 2) if n not in taken)


class Profiles:
    """What can be typed of profiles and value sets. Each method prints by `say`, and raises RefusedError."""

    def __init__(self, client: Client, names: Names, say: Callable[[str], None]) -> None:
        self._client = client
        self._names = names
        self._say = say

    def act_prof_create_member(self, name: str, action: str, *params: str) -> None:
        profile = self._profile(name)
        member = _smallest_free_id({one.member_id for one in self._members(profile)})
        self._put_member(INSERT, profile, member, action, params)
        self._say(f"Member has been created with handle {member - 1}")

    def act_prof_modify_member(self, name: str, action: str, member: str, *params: str) -> None:
        self._put_member(MODIFY, self._profile(name), id_of(member), action, [p for p in params if p != "=>"])

    def act_prof_delete_member(self, name: str, member: str) -> None:
        (found,) = self._members(self._profile(name), id_of(member))
        self._client.write([(DELETE, p4r.Entity(action_profile_member=found))])

    def act_prof_create_group(self, name: str) -> None:
        profile = self._profile(name)
        group = _smallest_free_id({one.group_id for one in self._groups(profile)})
        wanted = p4r.ActionProfileGroup(
            action_profile_id=profile.preamble.id, group_id=group, max_size=profile.max_group_size
        )
        self._client.write([(INSERT, p4r.Entity(action_profile_group=wanted))])
        self._say(f"Group has been created with handle {group - 1}")

    def act_prof_delete_group(self, name: str, group: str) -> None:
        (found,) = self._groups(self._profile(name), id_of(group))
        self._client.write([(DELETE, p4r.Entity(action_profile_group=found))])

    def act_prof_add_member_to_group(self, name: str, member: str, group: str) -> None:
        (found,) = self._groups(self._profile(name), id_of(group))
        found.members.add(member_id=id_of(member), weight=1)
        self._client.write([(MODIFY, p4r.Entity(action_profile_group=found))])

    def act_prof_remove_member_from_group(self, name: str, member: str, group: str) -> None:
        (found,) = self._groups(self._profile(name), id_of(group))
        left = [one for one in found.members if one.member_id != id_of(member)]
        if len(left) == len(found.members):
            raise RefusedError(f"group {group} has no member {member}")
        del found.members[:]
        found.members.extend(left)
        self._client.write([(MODIFY, p4r.Entity(action_profile_group=found))])

    def act_prof_dump(self, name: str) -> None:
        profile = self._profile(name)
        self._say("==========\nMEMBERS")
        for member in self._members(profile):
            self._show_member(member)
        self._say("==========\nGROUPS")
        for group in self._groups(profile):
            self._show_group(group)
        self._say("==========")

    def act_prof_dump_member(self, name: str, member: str) -> None:
        (found,) = self._members(self._profile(name), id_of(member))
        self._show_member(found)

    def act_prof_dump_group(self, name: str, group: str) -> None:
        (found,) = self._groups(self._profile(name), id_of(group))
        self._show_group(found)

    def _show_member(self, member: p4r.ActionProfileMember) -> None:
        info = self._names.actions_by_id[member.action.action_id]
        self._say(f"Dumping member {member.member_id - 1}\n{values.shown_action(member.action, info)}")

    def _show_group(self, group: p4r.ActionProfileGroup) -> None:
        members = ", ".join(str(one.member_id - 1) for one in group.members)
        self._say(f"Dumping group {group.group_id - 1}\nMembers: [{members}]")

    def _profile(self, name: str) -> p4i.ActionProfile:
        """The profile of that name, or that a table of that name has."""
        for table in self._names.p4info.tables:
            if table.implementation_id and name in (table.preamble.name, table.preamble.alias):
                return next(
                    one for one in self._names.p4info.action_profiles if one.preamble.id == table.implementation_id
                )
        found: p4i.ActionProfile = self._names.find("action_profiles", name)
        return found

    def _put_member(
        self,
        kind: p4r.Update.Type.ValueType,
        profile: p4i.ActionProfile,
        member: int,
        action: str,
        params: Sequence[str],
    ) -> None:
        info = self._names.action_of(self._names.table_by_id(profile.table_ids[0]), action)
        wanted = p4r.ActionProfileMember(
            action_profile_id=profile.preamble.id, member_id=member, action=values.action(info, params)
        )
        self._client.write([(kind, p4r.Entity(action_profile_member=wanted))])

    def _members(self, profile: p4i.ActionProfile, member: int = 0) -> list[p4r.ActionProfileMember]:
        query = p4r.ActionProfileMember(action_profile_id=profile.preamble.id, member_id=member)
        return [one.action_profile_member for one in self._client.read(p4r.Entity(action_profile_member=query))]

    def _groups(self, profile: p4i.ActionProfile, group: int = 0) -> list[p4r.ActionProfileGroup]:
        query = p4r.ActionProfileGroup(action_profile_id=profile.preamble.id, group_id=group)
        return [one.action_profile_group for one in self._client.read(p4r.Entity(action_profile_group=query))]

    # -- value sets ------------------------------------------------------------------------------

    def show_pvs(self) -> None:
        for one in self._names.p4info.value_sets:
            self._say(f"{one.preamble.name:<30} [{', '.join(f'{f.name}({f.bitwidth})' for f in one.match)}]")

    def pvs_get(self, name: str) -> None:
        info, entry = self._value_set(name)
        for member in entry.members:
            self._say(values.shown_match(p4r.TableEntry(match=member.match), info.match[0]))

    def pvs_add(self, name: str, value: str) -> None:
        info, entry = self._value_set(name)
        entry.members.append(_member(info, value))
        self._client.write([(MODIFY, p4r.Entity(value_set_entry=entry))])

    def pvs_remove(self, name: str, value: str) -> None:
        info, entry = self._value_set(name)
        wanted = _member(info, value)
        if wanted not in entry.members:
            raise RefusedError(f"{info.preamble.name} has no value {value}")
        entry.members.remove(wanted)
        self._client.write([(MODIFY, p4r.Entity(value_set_entry=entry))])

    def pvs_clear(self, name: str) -> None:
        info, _ = self._value_set(name)
        self._client.write([(MODIFY, p4r.Entity(value_set_entry=p4r.ValueSetEntry(value_set_id=info.preamble.id)))])

    def _value_set(self, name: str) -> tuple[p4i.ValueSet, p4r.ValueSetEntry]:
        info: p4i.ValueSet = self._names.find("value_sets", name)
        if len(info.match) != 1:
            raise RefusedError(f"{info.preamble.name} has {len(info.match)} fields: this console knows sets of one")
        query = p4r.ValueSetEntry(value_set_id=info.preamble.id)
        (found,) = self._client.read(p4r.Entity(value_set_entry=query))
        return info, found.value_set_entry


def _member(info: p4i.ValueSet, value: str) -> p4r.ValueSetMember:
    match = values.match(value, info.match[0])
    return p4r.ValueSetMember(match=[] if match is None else [match])
