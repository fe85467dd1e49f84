"""A session of p4runtime-shell: `python p4rt_shell_session.py ADDRESS P4INFO PROGRAM`, by a Python that has it.

Prints one JSON object with what it saw.
"""

import json
import sys

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException


def main() -> None:
    address, p4info, program = sys.argv[1:]
    seen = {}
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(p4info, program))
    try:
        entry = sh.TableEntry("dmac")(action="forward")
        entry.match["dst"] = "00:00:00:00:00:02"
        entry.action["port"] = "2"
        entry.insert()
        entry.action["port"] = "3"
        entry.modify()
        found = list(sh.TableEntry("dmac").read())
        seen["entries"] = len(found)
        seen["port"] = found[0].action["port"].value[-1]
        try:
            entry.insert()
        except P4RuntimeWriteException as error:
            seen["duplicate"] = "ALREADY_EXISTS" in str(error)

        ternary = sh.TableEntry("mirror")(action="copy")
        ternary.match["source"] = "00:00:00:00:00:01&&&00:00:00:00:00:ff"
        ternary.priority = 3
        ternary.action["session"] = "5"
        ternary.insert()
        seen["ternary"] = len(list(sh.TableEntry("mirror").read()))
        ternary.delete()

        group = sh.MulticastGroupEntry(1)
        group.add(1, 1).add(2, 1)
        group.insert()
        seen["replicas"] = len(next(iter(sh.MulticastGroupEntry(1).read())).replicas)
        group.delete()

        clone = sh.CloneSessionEntry(5)
        clone.add(1, 1)
        clone.insert()
        seen["sessions"] = len(list(sh.CloneSessionEntry(0).read()))
        clone.delete()

        member = sh.ActionProfileMember("paths")(member_id=1, action="via")
        member.action["port"] = "4"
        member.insert()
        selector = sh.ActionProfileGroup("paths")(group_id=1)
        selector.add(1)
        selector.insert()
        seen["groups"] = len(list(sh.ActionProfileGroup("paths").read()))
        selector.delete()
        member.delete()

        shot = sh.TableEntry("route")
        shot.match["kind"] = "0x88b6"
        choice = sh.Action("via")
        choice["port"] = "2"
        shot.oneshot = sh.Oneshot("route").add(choice, weight=1)
        shot.insert()
        seen["oneshot"] = len(list(sh.TableEntry("route").read()))
        shot.delete()

        counter = sh.CounterEntry("arrived")
        counter.index = 3
        counter.packet_count = 7
        counter.modify()
        seen["count"] = next(iter(counter.read())).packet_count
        direct = sh.DirectCounterEntry("hits")
        direct.table_entry.match["dst"] = "00:00:00:00:00:02"
        seen["hits"] = next(iter(direct.read())).packet_count

        default = sh.TableEntry("dmac")(action="punt", is_default=True)
        default.modify()
        seen["default"] = next(iter(sh.TableEntry("dmac")(is_default=True).read())).action.action_name
        packet = sh.PacketOut(b"0123456789abcd", port="2", _pad="0")
        packet.send()
        seen["capabilities"] = sh.APIVersion()
    finally:
        sh.teardown()
    print(json.dumps(seen))


main()
