"""At which loads `paced` measures whom: servers that carry, that are behind, that fail."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.measuring import CARRIED, Measurement
from benchmarks.plan import BenchmarkFailed
from benchmarks.rounds import LEAST_STREAMS, Entry, Rounds
from benchmarks.servers import PacedLoad, Running, Server
from benchmarks.servers.peers.grpcaio import GrpcAio
from benchmarks.servers.product import Product

ASKED = PacedLoad(512, 100.0)
PRODUCT, PEER = Product(), GrpcAio()


class Fake:
    """A server that carries `streams`, and fails above `fails`."""

    def __init__(self, server: Server, streams: float, fails: float = 1e9) -> None:
        self.server = server
        self.running = Running(server.name, "grpc", {"server": 1}, "/", b"")
        self.streams = streams
        self.fails = fails
        self.restarts = 0

    def again(self) -> None:
        self.restarts += 1


class Machine:
    """Rounds over servers that are reckoned and not run."""

    def __init__(self, *servers: Fake) -> None:
        self.servers = {each.running.address: each for each in servers}
        self.notes: list[str] = []
        entries = [Entry(each, ASKED, ASKED) for each in servers]
        self.rounds = Rounds(entries, self.measure, self.notes, lambda line: None)

    def measure(self, running: Running, load: PacedLoad) -> Measurement:
        server = self.servers[running.address]
        if load.streams > server.fails:
            raise BenchmarkFailed("an answer was cut")
        messages = min(server.streams, load.streams) * load.tokens_per_s
        return Measurement({"messages": messages, "window_s": 1.0}, {"server": 1.0}, {})

    def found(self) -> Counter[tuple[str, int]]:
        """Return (server, streams) → times measured, of all rows."""
        return Counter(
            {(each.server.name, each.load.streams): len(each.found) for each in self.rounds.entries}
        )


def test_servers_that_carry_the_load_are_measured_once_in_each_round() -> None:
    machine = Machine(Fake(PRODUCT, 1e9), Fake(PEER, 1e9))
    machine.rounds.run(3)
    assert machine.found() == {(PRODUCT.name, 512): 3, (PEER.name, 512): 3}
    assert not machine.notes


@pytest.mark.parametrize(
    ("streams", "rows"), [(512 * CARRIED, {512}), (512 * CARRIED - 1, {512, 256})]
)
def test_a_server_that_is_behind_is_measured_at_half_and_the_product_beside_it(
    streams: float, rows: set[int]
) -> None:
    peer = Fake(PEER, streams)
    machine = Machine(Fake(PRODUCT, 1e9), peer)
    machine.rounds.run(2)
    expected = {(name, each): 2 for name in (PRODUCT.name, PEER.name) for each in rows}
    assert machine.found() == expected
    assert (peer.restarts > 0) is (rows != {512}), "what it did not carry burdens nobody"


class Tiring(Fake):
    """A peer that carries the load in its first rounds and no more."""

    def __init__(self, fresh: int) -> None:
        self._fresh = fresh
        super().__init__(PEER, 0)

    @property
    def streams(self) -> float:
        self._fresh -= 1
        return 1e9 if self._fresh >= 0 else 480

    @streams.setter
    def streams(self, streams: float) -> None:
        pass


@pytest.mark.parametrize(("fresh", "rows"), [(2, {512}), (1, {512, 256})])
def test_a_server_that_is_behind_in_the_median_alone_is_measured_at_half_too(
    fresh: int, rows: set[int]
) -> None:
    machine = Machine(Fake(PRODUCT, 1e9), Tiring(fresh))
    machine.rounds.run(3)
    expected = {(name, each): 3 for name in (PRODUCT.name, PEER.name) for each in rows}
    assert machine.found() == expected


def test_a_peer_that_fails_is_started_anew_and_its_load_becomes_a_note() -> None:
    peer = Fake(PEER, 1e9, fails=200)
    machine = Machine(Fake(PRODUCT, 1e9), peer)
    machine.rounds.run(2)
    assert machine.found()[PEER.name, 128] == 2
    assert machine.found()[PRODUCT.name, 128] == 2
    assert (PEER.name, 512) not in machine.found()
    assert peer.restarts == len(machine.notes) == 2, "at 512 and at 256"


def test_a_peer_that_carries_nothing_is_a_note_and_ends_nothing() -> None:
    machine = Machine(Fake(PRODUCT, 1e9), Fake(PEER, 1))
    machine.rounds.run(1)
    assert any("carries no load" in note for note in machine.notes)
    assert min(each.load.streams for each in machine.rounds.entries) >= LEAST_STREAMS


@pytest.mark.parametrize("product", [Fake(PRODUCT, 1e9, fails=1), Fake(PRODUCT, 1)])
def test_a_product_that_fails_or_carries_nothing_ends_the_benchmark(product: Fake) -> None:
    with pytest.raises(BenchmarkFailed, match=PRODUCT.name):
        Machine(product, Fake(PEER, 1e9)).rounds.run(1)


def test_a_product_that_is_behind_is_measured_at_what_it_carries_too() -> None:
    machine = Machine(Fake(PRODUCT, 300), Fake(PEER, 1e9))
    machine.rounds.run(2)
    assert machine.found() == {(PRODUCT.name, 512): 2, (PRODUCT.name, 256): 2, (PEER.name, 512): 2}
