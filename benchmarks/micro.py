"""Each stage of a token's way, beside its floor: what the machine takes for that work alone.

The product's own functions run in this process, over real logs and a real table in /dev/shm, for
steps of 512 tokens: written, found, taken, joined, sent. Beside each stage stands its floor: the
bare system call, or a copy of the bytes, in Python too. So a stage that is near its floor cannot
become much cheaper in this language, and one that is far from it could.

CPU time of this thread, per token; each round gives every stage and every floor the same number
of steps, in turns. "whole" is what a step costs the sidecar from the bell to the socket; it
contains rows above it and is not their sum. Everything is warm in the caches here; a sidecar that
has slept between two steps pays more for the same (`paced` measures that).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import machine
from benchmarks.picture import Dot, dots
from benchmarks.plan import Plan
from benchmarks.result import Result
from benchmarks.servers import TOKEN
from benchmarks.spread import ratios, spread
from benchmarks.table import Column
from benchmarks.token_path import STREAMS, Parts, Pipe, token_path

RUNS, QUICK_RUNS = 5, 2
STEPS, QUICK_STEPS = 200, 40
CJK = "日本".encode()

COLUMNS = [
    Column("stage", "stage", number=False),
    Column("µs/token", "product_us"),
    Column("floor", "floor", number=False),
    Column("its µs/token", "floor_us"),
    Column("times the floor", "times"),
]

OPTIONS = [
    click.Option(
        ["--steps"],
        type=click.IntRange(min=1),
        help=f"Steps of each stage in a round.  [default: {STEPS}, with --quick {QUICK_STEPS}]",
    )
]


@dataclass(slots=True)
class Stage:
    """name, floor: what runs; one call of `product` or `bare` is a whole step of 512 tokens.

    finds: it looks for news itself, so there has to be some.
    """

    name: str
    product: Callable[[], object]
    floor: str
    bare: Callable[[], object]
    finds: bool = False
    product_us: list[float] = field(default_factory=list)
    floor_us: list[float] = field(default_factory=list)


def _stages(parts: Parts, pipe: Pipe) -> list[Stage]:
    pieces = parts.heads_and_tokens
    frames = [b"".join(pieces[at : at + 2]) for at in range(0, 2 * STREAMS, 2)]

    def whole() -> None:
        parts.bell.drain()
        parts.find()
        parts.take()
        pipe.send(parts.batch)

    def whole_bare() -> None:
        parts.find_bare()
        pipe.send_bare(b"".join(parts.heads_and_tokens))

    ascii_cut, ascii_copy = (lambda f=f: f(TOKEN) for f in (parts.cut, parts.copy))
    cjk_cut, cjk_copy = (lambda f=f: f(CJK) for f in (parts.cut, parts.copy))
    return [
        Stage("engine: write into the log, table", parts.write, "pwrite", parts.write_bare),
        Stage("doorbell, once a step", parts.ring, "send and recv", parts.ring_bare),
        Stage("find who moved in the table", parts.find,
              "preads of words and tails", parts.find_bare, finds=True),
        Stage("read a token from the table's tail", parts.read_tails,
              "copy of the bytes", ascii_copy),
        Stage("read a token from its log", parts.read_short, "pread", parts.read_short_bare),
        Stage("read a token, the long way", parts.read_long, "2 preads", parts.read_long_bare),
        Stage("cut characters, ASCII", ascii_cut, "copy of the bytes", ascii_copy),
        Stage("cut characters, 2 of 3 bytes", cjk_cut, "copy of the bytes", cjk_copy),
        Stage("pack a frame's head", parts.pack, "copy of the bytes", ascii_copy),
        Stage("pack a frame, the long way", parts.pack_long, "copy of the bytes", ascii_copy),
        Stage("take a step: windows, read, pack, count, join", parts.take,
              "cut from the tails, join", parts.take_bare),
        Stage("join the batch", parts.join, "copy of the bytes", parts.join_bare),
        Stage("write the batch", lambda: pipe.send(parts.full_batch),
              "bare write", lambda: pipe.send_bare(parts.full_batch)),
        Stage("write each frame by itself (not the product)", lambda: pipe.send_each(frames),
              "bare write of all", lambda: pipe.send_bare(parts.full_batch)),
        Stage("whole: bell, find, take, join, write", whole,
              "preads, join, bare write", whole_bare, finds=True),
    ]  # fmt: skip


def run(plan: Plan) -> Result:
    """Measure all stages, in turns."""
    steps = plan.extra.get("steps") or (QUICK_STEPS if plan.quick else STEPS)
    load = {
        "tokens in a step": STREAMS,
        "token": f"{len(TOKEN)} bytes of ASCII",
        "steps in a round": steps,
        "rounds": plan.runs,
        "clock": "CPU time of the thread",
        "quick": plan.quick,
    }
    result = Result("micro", machine(), load)
    with token_path() as (parts, pipe):
        stages = _stages(parts, pipe)
        for number in range(plan.runs):
            plan.say(f"round {number + 1} of {plan.runs}")
            for stage in stages:
                for times, run_step in (
                    (stage.product_us, stage.product),
                    (stage.floor_us, stage.bare),
                ):
                    times.append(_us_per_token(parts, pipe, run_step, steps, stage.finds))
    for stage in stages:
        times_floor = ratios(stage.product_us, stage.floor_us)
        result.results.append(
            {
                "stage": stage.name,
                "ours": stage is stages[-1],
                "product_us": spread(stage.product_us),
                "floor": stage.floor,
                "floor_us": spread(stage.floor_us),
                "times": times_floor,
            }
        )
    # The last stage is the whole step.
    result.ratios["preads, join and bare write of a step"] = times_floor["median"]
    return result


def _us_per_token(
    parts: Parts, pipe: Pipe, run_step: Callable[[], object], steps: int, finds: bool
) -> float:
    """Return the CPU of a step's token; before each step there is a new token in every log."""
    total_ns = 0
    for _ in range(steps):
        parts.write()
        parts.ringer.send(b"x")
        if not finds:
            parts.find()
        begun_ns = time.thread_time_ns()
        run_step()
        total_ns += time.thread_time_ns() - begun_ns
        pipe.empty()
        parts.settle()
    return total_ns / steps / STREAMS / 1e3


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw what each stage takes."""
    rows = document["results"]
    shown = [Dot(row["stage"], row["product_us"], ours=True) for row in rows]
    dots(
        path,
        title=f"CPU of each stage of a token's way, in steps of {STREAMS}",
        unit="µs of CPU per token, logarithmic scale",
        shown=shown,
    )
