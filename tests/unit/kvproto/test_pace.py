"""The clock of the rules: what is measured, what members say of themselves, and the spans that follow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproto.ids import Member
from kvproto.limits import MS
from kvproto.session import timing
from kvproto.session.pace import Pace, Span
from kvproto.session.schedule import Inflow
from kvproto.wire.control import TAG_LEADS, TAG_YIELDS, reaction_code, reaction_of

SPANS = {name: span for name, span in vars(timing).items() if isinstance(span, Span)}
US = 1_000


@pytest.mark.parametrize("name", SPANS)
def test_a_span_is_its_ceiling_until_everything_is_measured(name: str) -> None:
    span, pace = SPANS[name], Pace()
    assert pace[span] == span.ceiling_ns
    assert 0 < span.floor_ns < span.ceiling_ns


@given(
    span=st.sampled_from(list(SPANS.values())),
    reaction_ns=st.integers(1, 10**9),
    segment_ns=st.floats(1, 1e9),
    more=st.integers(0, 10**9),
)
def test_a_span_grows_with_what_is_measured_between_floor_and_ceiling(
    span: Span, reaction_ns: int, segment_ns: float, more: int
) -> None:
    short = span.of(reaction_ns, segment_ns)
    assert span.floor_ns <= short <= span.of(reaction_ns + more, segment_ns) <= span.ceiling_ns
    assert short <= span.of(reaction_ns, segment_ns + more)


@given(st.integers(1 * US, 50 * MS))
def test_a_reaction_survives_its_code_by_a_quarter_octave(reaction_ns: int) -> None:
    code = reaction_code(reaction_ns)
    told = reaction_of(code | TAG_LEADS | TAG_YIELDS)
    assert not code & (TAG_LEADS | TAG_YIELDS)
    assert told is not None
    assert reaction_ns - 1 <= told <= reaction_ns * 2**0.25 + US


def test_a_reaction_that_is_not_known_is_not_said() -> None:
    assert reaction_code(None) == 0
    assert reaction_of(TAG_LEADS) is None


def test_the_reaction_is_the_least_trip_and_how_late_timers_run() -> None:
    pace = Pace()
    pace.note_late(5 * MS)
    assert pace.reaction_ns is None, "no trip was measured"
    pace.note_answer(40 * US)
    pace.note_answer(90 * US)
    for _ in range(100):
        pace.note_late(10 * US)
    assert pace.reaction_ns is not None
    assert 40 * US <= pace.reaction_ns <= 42 * US, "timers that are late by the same every time add nothing"
    for late_us in (10, 60) * 50:
        pace.note_late(late_us * US)
    assert 100 * US < pace.reaction_ns < 200 * US


def test_spans_follow_what_this_reader_measures_whatever_others_say() -> None:
    pace, span = Pace(), Span(2, 0, US, 100 * MS)
    pace.note_answer(30 * US)
    for _ in range(100):
        pace.note_late(0)
    pace.note_member(Member(3), reaction_code(1 * MS))
    assert pace[span] == pytest.approx(60 * US, rel=0.02)


def test_much_quicker_members_go_before_and_much_later_ones_behind() -> None:
    pace, me = Pace(), Member(2)
    assert pace.before(me) == 0b011
    pace.note_answer(100 * US)
    for _ in range(100):
        pace.note_late(0)
    pace.note_member(Member(0), reaction_code(2 * MS))
    pace.note_member(Member(1), reaction_code(150 * US))
    pace.note_member(Member(5), reaction_code(10 * US))
    pace.note_member(Member(6), reaction_code(80 * US))
    assert pace.before(me) == 1 << 1 | 1 << 5
    assert pace.before(None) == 0


@pytest.mark.parametrize("rate", [3_000.0, 3_000_000.0], ids=["100 Mbit/s", "100 Gbit/s"])
def test_a_rate_is_learnt_within_some_slots(rate: float) -> None:
    """Segments that arrive at a rate, 16 at a time: the link is known well before 1 % of a prefix of 4 GiB is here."""
    pace = Pace()
    pace.note_answer(50 * US)
    inflow = Inflow(None, pace)
    for batch in range(640):
        inflow.add(16, 16, int(10 * MS + batch * 16 * 1e9 / rate))
    assert inflow.link == pytest.approx(rate, rel=0.1)
    assert pace.segment_ns == pytest.approx(1e9 / rate, rel=0.1)


def test_a_slow_beginning_does_not_look_like_a_slow_link() -> None:
    """Time without arrivals before the first segment is no part of any slot."""
    pace = Pace()
    pace.note_answer(20 * US)
    inflow = Inflow(None, pace)
    for batch in range(640):
        inflow.add(16, 16, 7_000 * MS + batch * 16 * 335)
    assert pace.segment_ns == pytest.approx(335, rel=0.15)


def test_bursts_make_no_link_faster_than_is_configured() -> None:
    """After a pause, as behind a shaper's bucket, ten times as much comes as the link takes."""
    pace = Pace()
    pace.note_answer(500 * US)
    inflow = Inflow(3_000.0, pace)
    for batch in range(640):
        inflow.add(16, 16, int(10 * MS + batch * 16 * 1e9 / 30_000))
    inflow.learn_link(60_000.0)
    assert inflow.link == 3_000
    assert pace.segment_ns == pytest.approx(1e9 / 3_000)
