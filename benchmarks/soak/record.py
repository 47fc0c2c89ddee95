"""What engines and clients of a soak write down. Pure.

Engine and client know nothing of each other's record: the checker compares the two.

Engine's record, a line for each event of a stream, in the order in which they happened:

    ID t HEX      it will commit this token now
    ID c          it has committed it
    ID e REASON   it will finish with this reason now
    ID f          it has finished
    ID x WHY      it can go on no further: the library said so

A process that is killed leaves a `t` without its `c`, or an `e` without its `f`: then nobody knows
whether that last step was done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class EngineRecord:
    """One engine process's record. Thread-safe: each event is one append."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(self, stream_id: str, event: str, word: str = "") -> None:
        os.write(self._fd, f"{stream_id} {event} {word}\n".encode())


@dataclass(slots=True)
class Written:
    """What an engine did for one stream.

    tokens: all that it was about to commit; the last one may not have been.
    committed: how many of them it surely did.
    reason: of the finish that it was about to write; None: there was none.
    finished: it surely did.
    gave_up: why it could go on no further; None: it could.
    """

    tokens: list[bytes] = field(default_factory=list)
    committed: int = 0
    reason: str | None = None
    finished: bool = False
    gave_up: str | None = None


def written(lines: Iterable[str]) -> dict[str, Written]:
    """Return what all engines did, by the stream's id."""
    found: dict[str, Written] = {}
    for line in lines:
        if not line.endswith("\n"):  # its writer was killed in the middle
            continue
        stream_id, event, word = line[:-1].split(" ", 2)
        each = found.setdefault(stream_id, Written())
        match event:
            case "t":
                each.tokens.append(bytes.fromhex(word))
            case "c":
                each.committed = len(each.tokens)
            case "e":
                each.reason = word
            case "f":
                each.finished = True
            case "x":
                each.gave_up = word
    return found


@dataclass(slots=True)
class Read:
    """What one reader got, over all its calls.

    kind: how it behaves; see client.py.
    resumable: it asked for that, or came by ResumeStream.
    stream_id: the server's name; "" if no call was ever accepted.
    pieces: (offset, bytes) of each frame, in the order in which they came.
    starts: offset asked for by each of its calls, with the number of pieces it had then.
    begun_s, ended_s: monotonic moments.
    left: it stopped reading because it wanted to.
    code, text: of its last call. offset: that call's rrpa-offset; None: there was none.
    reason: of the Finish; None: there was none. tokens: of the Finish's usage.
    """

    kind: str
    resumable: bool = False
    stream_id: str = ""
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    begun_s: float = 0.0
    ended_s: float = 0.0
    left: bool = False
    code: str = ""
    text: str = ""
    offset: int | None = None
    reason: str | None = None
    tokens: int = 0

    def line(self) -> str:
        """Return it as a line of JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["pieces"] = [(offset, data.hex()) for offset, data in self.pieces]
        return json.dumps(values) + "\n"

    @classmethod
    def of_line(cls, line: str) -> Read:
        values: dict[str, Any] = json.loads(line)
        values["pieces"] = [(offset, bytes.fromhex(data)) for offset, data in values["pieces"]]
        values["starts"] = [tuple(each) for each in values["starts"]]
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Fault:
    """name: of what was done. begun_s, ended_s: monotonic, until all was well again."""

    name: str
    begun_s: float
    ended_s: float
