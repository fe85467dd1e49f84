"""Weights of engines over time: nothing has a name while it is open whether they changed."""

from __future__ import annotations

import pytest

from kvclient.engines.core.generations import Generations, Told

WORKERS = ("first", "second")


def loaded(*, has_cache: bool = True, checksum: str = "a") -> Generations:
    """An engine of two workers that have told the weights that they loaded."""
    made = Generations(WORKERS, has_cache=has_cache)
    assert not made.is_settled
    made.worker_loaded("first", checksum)
    assert not made.is_settled
    made.worker_loaded("second", checksum)
    return made


def ask(weights: Generations, *checksums: str, cache_emptied: bool = True) -> Told:
    """What the last worker's answer to a new question changes."""
    weights.weights_may_have_changed(cache_emptied=cache_emptied)
    assert not weights.is_settled
    told = Told.NOTHING
    for worker, checksum in zip(WORKERS, checksums, strict=True):
        assert told is Told.NOTHING
        told = weights.worker_told(worker, weights.question, checksum)
    return told


def test_the_same_weights_keep_their_name() -> None:
    weights = loaded()
    assert weights.is_settled
    assert weights.name() == ""
    assert ask(weights, "a", "a") is Told.UNCHANGED
    assert weights.name("of the trainer") == ""


def test_other_weights_have_another_name_and_those_of_before_their_old_one() -> None:
    weights = loaded()
    assert ask(weights, "a", "b") is Told.CHANGED
    once = weights.name()
    assert once.startswith("checksum=")
    assert ask(weights, "b", "a") is Told.CHANGED
    assert weights.name() not in ("", once), "the other worker's part changed"
    assert ask(weights, "a", "b") is Told.CHANGED
    assert weights.name() == once
    assert ask(weights, "a", "a") is Told.CHANGED
    assert weights.name() == ""


def test_engines_of_one_layout_share_what_they_changed_to() -> None:
    one, other = loaded(), loaded()
    assert ask(one, "b", "c") is Told.CHANGED
    assert ask(other, "x", "y") is Told.CHANGED
    assert ask(other, "b", "c") is Told.CHANGED
    assert one.name() == other.name()


def test_the_callers_version_names_one_set_of_weights() -> None:
    weights = loaded()
    assert ask(weights, "b", "b") is Told.CHANGED
    assert weights.name("step 1") == weights.name("step 1") == "version=step 1"
    assert ask(weights, "c", "c") is Told.CHANGED
    assert weights.name("step 1").startswith("checksum="), "the caller has forgotten to name these"
    assert weights.name("step 2") == "version=step 2"


def test_a_cache_that_was_not_emptied_keeps_all_without_a_name() -> None:
    weights = loaded()
    assert ask(weights, "b", "b", cache_emptied=False) is Told.CHANGED
    assert weights.is_stale
    assert ask(weights, "b", "b", cache_emptied=False) is Told.UNCHANGED
    assert weights.is_stale
    assert ask(weights, "b", "b", cache_emptied=True) is Told.UNCHANGED
    assert not weights.is_stale
    assert ask(weights, "b", "b", cache_emptied=False) is Told.UNCHANGED
    assert not weights.is_stale, "nothing changed, so nothing in the cache is of other weights"


def test_an_engine_without_a_cache_has_nothing_of_before() -> None:
    weights = loaded(has_cache=False)
    assert ask(weights, "b", "b", cache_emptied=False) is Told.CHANGED
    assert not weights.is_stale


def test_a_change_that_nobody_asked_for_is_a_question_and_leaves_a_cache_of_before() -> None:
    weights = loaded()
    assert weights.worker_told("second", 0, "b") is Told.NOTICED
    assert not weights.is_settled
    assert weights.worker_told("first", 1, "b") is Told.NOTHING
    assert weights.worker_told("second", 1, "b") is Told.CHANGED
    assert weights.is_stale
    assert ask(weights, "b", "b") is Told.UNCHANGED
    assert not weights.is_stale


def test_a_cache_emptied_before_anybody_answered_is_empty_for_the_next_question_too() -> None:
    weights = loaded()
    weights.weights_may_have_changed(cache_emptied=True)
    assert ask(weights, "b", "b", cache_emptied=False) is Told.CHANGED
    assert not weights.is_stale
    weights.weights_may_have_changed(cache_emptied=True)
    assert weights.worker_told("first", weights.question, "c") is Told.NOTHING
    assert ask(weights, "c", "c", cache_emptied=False) is Told.CHANGED
    assert weights.is_stale, "steps were made in between, and one worker's weights may have been others in them"


def test_late_answers_settle_nothing() -> None:
    weights = loaded()
    weights.weights_may_have_changed(cache_emptied=True)
    weights.weights_may_have_changed(cache_emptied=True)
    for worker in WORKERS:
        assert weights.worker_told(worker, 1, "b") is Told.NOTHING
    assert not weights.is_settled
    with pytest.raises(KeyError):
        weights.worker_told("third", 2, "b")
    with pytest.raises(KeyError):
        weights.worker_loaded("third", "b")


def test_weights_that_changed_before_the_first_step_are_not_those_that_were_loaded() -> None:
    weights = Generations(WORKERS, has_cache=True)
    weights.weights_may_have_changed(cache_emptied=True)
    for worker in WORKERS:
        weights.worker_loaded(worker, "a")
        assert not weights.is_settled
    assert weights.worker_told("first", 1, "b") is Told.NOTHING
    assert weights.worker_told("second", 1, "a") is Told.CHANGED
    assert weights.name().startswith("checksum=")
