"""The faults of a soak, one at a time, each until all is well again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.soak.node import Node, kill, wait_ended
from benchmarks.soak.record import Fault

Act = Callable[[Node, random.Random], None]


def kill_sidecar(node: Node, rng: random.Random) -> None:
    node.kill_sidecar()


def hand_over(node: Node, rng: random.Random) -> None:
    node.hand_over()


def kill_engine(node: Node, rng: random.Random) -> None:
    """SIGKILL, a while without it, and another."""
    number = rng.randrange(len(node.engines))
    kill(node.engines[number])
    time.sleep(rng.random())
    node.start_engine(number)


def end_engine(node: Node, rng: random.Random) -> None:
    number = rng.randrange(len(node.engines))
    os.kill(node.engines[number].pid, signal.SIGTERM)
    wait_ended(node.engines[number], 20)
    node.start_engine(number)


def stop_engine(node: Node, rng: random.Random) -> None:
    """SIGSTOP for a while: slow is not dead."""
    engine = rng.choice(node.engines)
    os.kill(engine.pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 3))
    os.kill(engine.pid, signal.SIGCONT)


def drop_bells(node: Node, rng: random.Random) -> None:
    """No bell is heard for a while: nobody finds its socket."""
    bell = node.workdir / "engine.sock.bell"
    with moved(str(bell)):
        time.sleep(rng.uniform(0.5, 2))


def fill_directory(node: Node, rng: random.Random) -> None:
    """No byte of memory is free for a while."""
    filler = node.shm / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError:
                pass
        time.sleep(rng.uniform(0.3, 1.5))
    finally:
        filler.unlink()


@contextmanager
def moved(path: str) -> Iterator[None]:
    os.rename(path, path + ".away")
    try:
        yield
    finally:
        os.rename(path + ".away", path)


FAULTS: dict[str, tuple[Act, int]] = {
    "kill sidecar": (kill_sidecar, 2),
    "hand over": (hand_over, 1),
    "kill engine": (kill_engine, 2),
    "end engine": (end_engine, 1),
    "stop engine": (stop_engine, 2),
    "drop bells": (drop_bells, 2),
    "full directory": (fill_directory, 1),
}
"""What is done, and how often beside the others."""
REPLACES_SIDECAR = ("kill sidecar", "hand over")


class Faults:
    """Puts in one fault after the other.

    names: those that may be; a full directory needs a file system of the node's own.
    """

    def __init__(self, node: Node, rng: random.Random, names: tuple[str, ...]) -> None:
        self._node = node
        self._rng = rng
        own = node.own_file_system
        self.names = [name for name in names if own or name != "full directory"]
        self.done: list[Fault] = []

    def next_in_s(self) -> float:
        return self._rng.uniform(1, 5)

    def put_in(self, *, sidecar_stays: bool = False) -> str:
        """Do one, wait until all is well again, and return its name.

        sidecar_stays: it may not be replaced; if that is what comes next, "" is returned.
        """
        if not self.names:
            return ""
        weights = [FAULTS[name][1] for name in self.names]
        (name,) = self._rng.choices(self.names, weights)
        if sidecar_stays and name in REPLACES_SIDECAR:
            return ""
        begun_s = time.monotonic()
        FAULTS[name][0](self._node, self._rng)
        self.done.append(Fault(name, begun_s, time.monotonic()))
        return name
