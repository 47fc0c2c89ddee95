"""The life of a stream is one table."""

from __future__ import annotations

from itertools import product

import pytest

from rrpa_sidecar.control.lifecycle import (
    GENERATES,
    HOLDS_SLOT,
    MAY_GO_ON,
    TOLD_TO_STOP,
    TRANSITIONS,
    State,
    Step,
    next_state,
)
from rrpa_sidecar.errors import StreamMisuse


def test_table_has_a_row_for_every_state():
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize(("state", "step"), list(product(State, Step)))
def test_a_step_leads_where_the_table_says_or_raises(state, step):
    if step in TRANSITIONS[state]:
        assert next_state(state, step) is TRANSITIONS[state][step]
    else:
        with pytest.raises(StreamMisuse, match=rf"{state.name} cannot take {step.name}"):
            next_state(state, step)


def test_every_state_can_be_reached_and_every_step_is_used():
    reached, steps = {State.QUEUED, State.AWAITED, State.FOUND}, set()
    for _ in State:
        for state in list(reached):
            reached |= set(TRANSITIONS[state].values())
            steps |= set(TRANSITIONS[state])
    assert reached == set(State)
    assert steps == set(Step)


def test_client_can_leave_from_every_state_in_which_it_is_there():
    without = {state for state in State if Step.LEAVE not in TRANSITIONS[state]}
    assert without == {State.LEAVING, State.GONE}


def test_engine_loss_is_answered_in_every_state_that_holds_a_slot():
    assert all(Step.ENGINE_GONE in TRANSITIONS[state] for state in HOLDS_SLOT)


def test_states_that_hold_a_slot_are_entered_only_by_submission_and_adoption():
    entries = {
        (state, step)
        for state, row in TRANSITIONS.items()
        for step, target in row.items()
        if state not in HOLDS_SLOT and target in HOLDS_SLOT
    }
    adopted = {(state, Step.ADOPT) for state in (State.LOSING, State.AWAITED, State.FOUND)}
    assert entries == {(State.QUEUED, Step.SUBMIT)} | adopted


def test_a_stream_is_told_to_stop_at_most_once_by_each_attachment():
    # Cancel is sent on the way from GENERATES to TOLD_TO_STOP; the way back is another engine's.
    assert not GENERATES & TOLD_TO_STOP
    later = set(TOLD_TO_STOP)
    for _ in State:
        later |= {
            target
            for state in later
            for step, target in TRANSITIONS[state].items()
            if step is not Step.ADOPT
        }
    assert not later & GENERATES


def test_a_resumable_stream_can_be_stopped_or_left_wherever_it_may_go_on():
    for state in MAY_GO_ON:
        assert Step.LEAVE in TRANSITIONS[state]
    assert all(Step.STOP in TRANSITIONS[state] for state in GENERATES)
