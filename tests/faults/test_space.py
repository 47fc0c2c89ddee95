"""Too little room, in the file system or in memory: refused with numbers, and nobody is killed.

Each case runs the real daemon, an engine's process on the library, and gRPC clients (G25, G51).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Iterator

import pytest

from rrpa_sidecar.errors import ShmFull
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.memory import FRESH_NS
from rrpa_sidecar.shm.writer import LogWriter
from tests.faults.stage import (
    MIB,
    Caller,
    Puppet,
    SmallTmpfs,
    caller_of,
    memory_groups,
    needs_root,
    prefixed,
    small_tmpfs,
)
from tests.harness.processes import Daemon, eventually

RECOVERY_S = 1.0
LIMIT = 256 * MIB
TOKEN = bytes(range(32, 96)) * 64  # 4 KiB of ASCII


@contextlib.contextmanager
def serving_on(
    tmpfs: SmallTmpfs, stream_bytes: int, capacity: int = 8
) -> Iterator[tuple[Daemon, Puppet, Caller]]:
    """A daemon and a puppet on `tmpfs`; both must end by themselves, killed by no signal."""
    daemon = Daemon(shm_dir=tmpfs.path, stream_bytes=stream_bytes)
    prefixed(daemon, tmpfs.prefix)
    with daemon, caller_of(daemon) as caller:
        with Puppet(daemon, capacity, tmpfs.prefix) as puppet:
            eventually(lambda: puppet.do("serving"), what="attached")
            yield daemon, puppet, caller
            assert puppet.alive, puppet.said()
            assert daemon.alive, daemon.said()
        assert puppet.returncode == 0, puppet.said()
    assert daemon.returncode == 0, daemon.said()


def refused(caller: Caller) -> str:
    """Return the text of a refusal for want of room."""
    got, code, text = caller.call().outcome()
    assert (got, code) == (b"", "RESOURCE_EXHAUSTED"), text
    return text


def served_again(puppet: Puppet, caller: Caller) -> None:
    """A new stream goes through within the time that recovery may take."""
    began_s = time.monotonic()
    while True:
        call = caller.call()
        taken = puppet.do("take", count=1) if call_goes_on(call) else []
        if taken:
            break
        assert time.monotonic() - began_s < RECOVERY_S, "no recovery"
    assert puppet.write(taken[0], b"again") == 5
    puppet.do("finish", job=taken[0])
    assert call.outcome()[:2] == (b"again", "OK")
    assert time.monotonic() - began_s < RECOVERY_S


def call_goes_on(call: object) -> bool:
    """Whether a call was admitted; its first metadata says so."""
    try:
        return bool(call.stream_id)  # type: ignore[attr-defined]
    except KeyError:
        return False


@needs_root
@pytest.mark.parametrize(("size", "stream_bytes"), [(MIB, 128 * 1024), (64 * MIB, 16 * MIB)])
def test_directory_that_is_filled_from_outside_ends_streams_with_numbers_and_recovers(
    size: int, stream_bytes: int
) -> None:
    with (
        small_tmpfs(size) as tmpfs,
        serving_on(tmpfs, stream_bytes) as (daemon, puppet, caller),
    ):
        calls = {name: caller.call() for name in ("unborn", "born", "running", "ending")}
        jobs = puppet.take(len(calls))
        by_id = {call.stream_id: name for name, call in calls.items()}
        job = {by_id[each]: each for each in jobs}
        puppet.do("begin", job=job["born"])
        for name in ("running", "ending"):
            assert puppet.write(job[name], TOKEN) == len(TOKEN)
            assert calls[name].read(len(TOKEN)) == TOKEN
        for name in ("unborn", "born", "running"):
            tmpfs.fill()  # what ended before has made room
            said = puppet.write(job[name], TOKEN)
            assert "JobOver" in str(said), name
            got, code, text = calls[name].outcome()
            assert (got, code) == (b"", "RESOURCE_EXHAUSTED"), (name, text)
            assert re.search(rf" 0 of {size} bytes free, \d+ wanted", text), (name, text)
            file = tmpfs.inside / f"rrpa_{job[name]}"
            eventually(lambda file=file: not file.exists(), what="it is removed")
        tmpfs.fill()
        assert f"0 of {size} bytes free" in refused(caller)
        assert daemon.metric("rrpa_shm_free_bytes") == 0
        assert puppet.do("finish", job=job["ending"]) is None  # its end has a place since birth
        assert calls["ending"].outcome()[:2] == (b"", "OK")
        tmpfs.empty()
        served_again(puppet, caller)
        eventually(lambda: not list(tmpfs.inside.glob("rrpa_[0-9a-f]*")), what="no file stays")


@needs_root
def test_streams_that_fill_the_directory_themselves_end_with_their_exact_bytes() -> None:
    with (
        small_tmpfs(MIB) as tmpfs,
        serving_on(tmpfs, MIB // 2) as (_, puppet, caller),
    ):
        call = caller.call()
        (job,) = puppet.take()
        (tmpfs.inside / "filler").write_bytes(bytes(tmpfs.free_bytes() - 100 * 1024))
        assert "full" in str(puppet.write(job, TOKEN, repeat=1000))
        written = puppet.do("tokens", job=job)
        got, code, text = call.outcome()
        assert got == TOKEN * written
        assert written > 10
        assert code == "RESOURCE_EXHAUSTED", text
        assert str(MIB) in text
        (tmpfs.inside / "filler").unlink()
        served_again(puppet, caller)


@needs_root
def test_engine_that_finds_the_directory_full_attaches_once_there_is_room() -> None:
    with small_tmpfs(MIB) as tmpfs:
        daemon = Daemon(shm_dir=tmpfs.path, stream_bytes=128 * 1024)
        prefixed(daemon, tmpfs.prefix)
        with daemon, caller_of(daemon) as caller:
            tmpfs.fill()
            with Puppet(daemon, prefix=tmpfs.prefix) as puppet:
                time.sleep(0.2)
                assert not puppet.do("serving")
                assert "1048576 bytes free" in puppet.stderr or "0 of 1048576" in puppet.stderr
                tmpfs.empty()
                eventually(lambda: puppet.do("serving"), 2, what="attached")
                served_again(puppet, caller)
            assert puppet.returncode == 0


@needs_root
def test_sidecar_and_engine_start_in_a_directory_that_leftovers_have_filled() -> None:
    """Those of streams too, whose readers may still come: who lives goes before them (G26)."""
    stream_bytes = 256 * 1024
    with small_tmpfs(MIB) as tmpfs:
        left = PlainDirectory(str(tmpfs.inside))
        with contextlib.suppress(ShmFull):
            while True:
                log = LogWriter.create(left, secrets.token_hex(16), stream_bytes=stream_bytes)
                log.write(TOKEN * 10)
                log.close()
        assert tmpfs.free_bytes() < stream_bytes
        with serving_on(tmpfs, stream_bytes) as (_, puppet, caller):
            served_again(puppet, caller)
            assert len(list(tmpfs.inside.glob("rrpa_[0-9a-f]*"))) > 10, "the others are kept"


@needs_root
def test_engine_at_its_memory_limit_refuses_with_numbers_and_nobody_is_killed() -> None:
    """The pages of streams are charged to the engine's group; the sidecar's stays small."""
    with memory_groups(LIMIT, LIMIT) as (engines, sidecars):
        daemon = Daemon()
        prefixed(daemon, sidecars.prefix)
        with daemon, caller_of(daemon) as caller, Puppet(daemon, 24, engines.prefix) as puppet:
            eventually(lambda: puppet.do("serving"), what="attached")
            calls = [caller.call() for _ in range(20)]
            jobs = puppet.take(20)
            token, ended = b"x" * 64 * 1024, []
            for job in jobs:  # up to 13 MiB each: 260 MiB
                said = puppet.write(job, token, repeat=200)
                if said != 200 * len(token):
                    assert "memory limit" in str(said), said
                    ended.append(job)
            assert 3 <= len(ended) <= 15
            assert engines.kills() == sidecars.kills() == 0
            assert 180 * MIB < engines.used_bytes() < LIMIT
            written = {job: puppet.do("tokens", job=job) * len(token) for job in jobs}
            for job in set(jobs) - set(ended):
                puppet.do("finish", job=job)
            for call in calls:
                job = call.stream_id
                got, code, text = call.outcome()
                assert len(got) == written[job]
                assert code == ("RESOURCE_EXHAUSTED" if job in ended else "OK"), text
                if job in ended:
                    assert f"of {LIMIT} bytes below the memory limit" in text
            assert sidecars.used_bytes() < 100 * MIB, "the sidecar pays for the engine's pages"
            served_again(puppet, caller)
            assert engines.kills() == sidecars.kills() == 0
        assert puppet.returncode == 0, puppet.said()
        assert daemon.returncode == 0, daemon.said()


@needs_root
def test_sidecar_near_its_memory_limit_refuses_new_streams_and_serves_those_it_has() -> None:
    with memory_groups(LIMIT) as (group,):
        daemon = Daemon()
        prefixed(daemon, group.prefix)
        with daemon, caller_of(daemon) as caller, Puppet(daemon) as puppet:
            eventually(lambda: puppet.do("serving"), what="attached")
            running = caller.call()
            (job,) = puppet.take()
            group.limit(near := group.kept_bytes() + 4 * MIB)
            time.sleep(2 * FRESH_NS / 1e9)
            text = refused(caller)
            assert "the sidecar is short of memory" in text
            assert f"of {near // 4096 * 4096} bytes below the memory limit" in text
            assert puppet.write(job, b"goes on") == 7
            puppet.do("finish", job=job)
            assert running.outcome()[:2] == (b"goes on", "OK")
            group.limit(LIMIT)
            served_again(puppet, caller)
            assert group.kills() == 0
