"""A stream's life as one table. What belongs to each step is in `steps.py`; those who cause one are
`dispatch`, `readers`, `attachments`, `adoption`, `resuming`, `finding`, `watch` and the broker."""

from __future__ import annotations

from enum import Enum, auto

from rrpa_sidecar.errors import StreamMisuse


class State(Enum):
    """Where a stream is."""

    QUEUED = auto()
    """Waits for a slot of an engine and a share of the shared-memory budget."""
    SUBMITTED = auto()
    """An engine has it; its log was not seen yet."""
    STREAMING = auto()
    """Its log grows."""
    STOPPING = auto()
    """The engine was told to stop; readers, if there are any, wait for the end that it writes."""
    CORRUPT = auto()
    """Its log broke a rule. The engine was told to stop; its slot waits for the writer to go."""
    LOSING = auto()
    """Its engine is gone; the log's last bytes, or the engine's return, are waited for."""
    AWAITED = auto()
    """Somebody reads it, but this process knows neither engine nor log: it may be announced yet."""
    FOUND = auto()
    """Its log was found, kept here or of an earlier process; its engine is not known (yet)."""
    ENDED = auto()
    """All is known; its readers have not taken all of it yet."""
    LEAVING = auto()
    """The clients left first. The engine was told to stop; its slot waits for that."""
    GONE = auto()
    """Over for clients and engine."""


class Step(Enum):
    """What can happen to a stream."""

    SUBMIT = auto()
    REFUSE = auto()
    """It will have no engine: deadline, no room, nobody serves its model, nobody announced it."""
    ADOPT = auto()
    """An engine says that it works on it since before this attachment."""
    LOG_SEEN = auto()
    STOP = auto()
    """The engine is told to stop; what it has written until then stays for readers."""
    FINAL = auto()
    """The log's final state was read."""
    BREAK = auto()
    """The log broke a rule of shm/FORMAT.md."""
    REJECT = auto()
    """The engine says that it will not begin."""
    WRITER_GONE = auto()
    """The log's lease is free and its state is open: nobody will ever end it."""
    ENGINE_GONE = auto()
    """The engine's Attach call ended."""
    LOSE = auto()
    """A lost engine's log has no writer any more, or we waited long enough."""
    LEAVE = auto()
    """Nobody reads it any more, and nobody is waited for. Once."""


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.QUEUED: {
        Step.SUBMIT: State.SUBMITTED,
        Step.REFUSE: State.ENDED,
        Step.LEAVE: State.GONE,
    },
    State.SUBMITTED: {
        Step.LOG_SEEN: State.STREAMING,
        Step.STOP: State.STOPPING,
        Step.REJECT: State.ENDED,
        Step.BREAK: State.CORRUPT,
        Step.ENGINE_GONE: State.LOSING,
        Step.LEAVE: State.LEAVING,
    },
    State.STREAMING: {
        Step.STOP: State.STOPPING,
        Step.FINAL: State.ENDED,
        Step.BREAK: State.CORRUPT,
        Step.WRITER_GONE: State.ENDED,
        Step.ENGINE_GONE: State.LOSING,
        Step.LEAVE: State.LEAVING,
    },
    State.STOPPING: {
        Step.LOG_SEEN: State.STOPPING,
        Step.FINAL: State.ENDED,
        Step.BREAK: State.CORRUPT,
        Step.REJECT: State.ENDED,
        Step.WRITER_GONE: State.ENDED,
        Step.ENGINE_GONE: State.LOSING,
        Step.LEAVE: State.LEAVING,
    },
    State.CORRUPT: {
        Step.REJECT: State.ENDED,
        Step.WRITER_GONE: State.ENDED,
        Step.ENGINE_GONE: State.ENDED,
        Step.LEAVE: State.LEAVING,
    },
    State.LOSING: {
        Step.LOG_SEEN: State.LOSING,
        Step.ADOPT: State.SUBMITTED,
        Step.FINAL: State.ENDED,
        Step.BREAK: State.ENDED,
        Step.LOSE: State.ENDED,
        Step.LEAVE: State.GONE,
    },
    State.AWAITED: {
        Step.ADOPT: State.SUBMITTED,
        Step.REFUSE: State.ENDED,
        Step.LEAVE: State.GONE,
    },
    State.FOUND: {
        Step.ADOPT: State.SUBMITTED,
        Step.FINAL: State.ENDED,
        Step.BREAK: State.ENDED,
        Step.WRITER_GONE: State.ENDED,
        Step.LEAVE: State.GONE,
    },
    State.LEAVING: {
        Step.LOG_SEEN: State.LEAVING,
        Step.FINAL: State.GONE,
        Step.BREAK: State.LEAVING,
        Step.REJECT: State.GONE,
        Step.WRITER_GONE: State.GONE,
        Step.ENGINE_GONE: State.GONE,
    },
    State.ENDED: {
        Step.LEAVE: State.GONE,
    },
    State.GONE: {},
}

HOLDS_SLOT = frozenset(
    {State.SUBMITTED, State.STREAMING, State.STOPPING, State.CORRUPT, State.LEAVING}
)
"""States in which an attached engine has the stream."""

GENERATES = frozenset({State.SUBMITTED, State.STREAMING})
"""States in which the engine works for a client."""

TOLD_TO_STOP = frozenset({State.STOPPING, State.CORRUPT, State.LEAVING})
"""Entered from GENERATES, these cost exactly one Cancel."""

MAY_GO_ON = GENERATES | {State.QUEUED, State.STOPPING, State.LOSING}
"""States in which a resumable stream needs no reader for a while."""


def next_state(state: State, step: Step) -> State:
    """Return where `step` leads.

    Raises:
      StreamMisuse: the table has no such pair; the state stays what it was.
    """
    try:
        return TRANSITIONS[state][step]
    except KeyError:
        raise StreamMisuse(f"a stream that is {state.name} cannot take {step.name}") from None
