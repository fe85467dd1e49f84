"""Ids and aliases: p4c's rules, with numbers that p4c was seen to give."""

from __future__ import annotations

from p4switch.ir.types import Annotation
from p4switch.p4info import allocate_field_ids, allocate_ids, jenkins_one_at_a_time, shortest_unique_suffixes


def test_ids_are_p4c_s():
    actions = allocate_ids(0x01, dict.fromkeys(["NoAction", "IngressI.aux.a", "ingress.add", "ingress.do_thing"]))
    assert actions == {
        "NoAction": 21257015,
        "IngressI.aux.a": 27422362,
        "ingress.add": 20728178,
        "ingress.do_thing": 26431821,
    }


def test_given_ids_get_the_prefix_of_their_kind_and_collisions_the_next_number():
    first = jenkins_one_at_a_time(b"b") & 0xFFFFFF
    ids = allocate_ids(0x02, {"a": first, "b": None})
    assert ids == {"a": 0x02000000 | first, "b": 0x02000000 | (first + 1)}


def test_aliases_are_the_shortest_suffixes_that_are_unique():
    assert shortest_unique_suffixes(["d.a.c", "e.b.c", "x.y", "y", "NoAction"]) == {
        "d.a.c": "a.c",
        "e.b.c": "b.c",
        "x.y": "x.y",
        "y": "y",
        "NoAction": "NoAction",
    }


def test_field_ids_count_around_those_given():
    given = Annotation("id", body=(1,))
    assert allocate_field_ids([[], [given], []]) == [2, 1, 3]
    assert allocate_field_ids([[], [], []]) == [1, 2, 3]
