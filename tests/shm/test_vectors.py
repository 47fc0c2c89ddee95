"""The vectors: made again byte for byte, read as they say, and written by another language."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from rrpa_sidecar.errors import CorruptLog
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.table import TableReader
from tests.shm.support import slots_of
from tests.vectors import generate

INDEX: dict[str, Any] = json.loads((generate.HERE / "vectors.json").read_text())
LOGS: list[dict[str, Any]] = INDEX["logs"]
BY_A_WRITER = [log for log in LOGS if not log["patches"]]
each_log = pytest.mark.parametrize("log", LOGS, ids=lambda log: log["name"])
each_written = pytest.mark.parametrize("log", BY_A_WRITER, ids=lambda log: log["name"])


def test_the_vectors_are_made_again_to_the_same_bytes(tmp_path: Path) -> None:
    generate.generate(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {
        path.name: path.read_bytes()
        for path in generate.HERE.iterdir()
        if path.suffix in (".bin", ".json")
    }
    assert made.keys() == kept.keys()
    assert [name for name in made if made[name] != kept[name]] == []


def end_of(log: dict[str, Any]) -> End | None:
    fields = log["end"]
    if fields is None:
        return None
    stop = fields["stop_sequence_hex"]
    numbers = {k: v for k, v in fields.items() if k != "stop_sequence_hex"}
    return End(**numbers, stop_sequence=None if stop is None else bytes.fromhex(stop))


def bytes_of(log: dict[str, Any]) -> bytes:
    written = b"".join(bytes.fromhex(token) for token in log["tokens_hex"])
    return written[: log["committed_bytes"]]


@each_log
def test_a_reader_sees_what_the_vector_says(plain: PlainDirectory, log: dict[str, Any]) -> None:
    path = Path(plain.path, layout.log_name(log["stream_id"]))
    vector = (generate.HERE / f"{log['name']}.bin").read_bytes()
    path.write_bytes(generate.expand(vector, INDEX["file_bytes"]))
    if log["error_says"]:
        with pytest.raises(CorruptLog, match=log["error_says"]):
            check(plain, log)
    else:
        check(plain, log)


def check(plain: PlainDirectory, log: dict[str, Any]) -> None:
    read = LogReader.open(plain, log["stream_id"], stream_bytes=INDEX["file_bytes"])
    try:
        read.progress()
        end = end_of(log)
        assert read.writer_gone() is (end is None)
        assert read.progress() == (log["committed_bytes"], end)
        assert read.read(0, 1 << 20) == bytes_of(log)
        first = INDEX["clock_ns"] if log["committed_bytes"] else None
        assert read.first_commit_ns() == first
    finally:
        read.close()


def test_the_table_vector_is_read_as_it_says(plain: PlainDirectory) -> None:
    table = INDEX["table"]
    path = Path(plain.path, layout.table_name(table["table_id"]))
    vector = (generate.HERE / "table.bin").read_bytes()
    path.write_bytes(generate.expand(vector, table["file_bytes"]))
    check_table(plain)


def check_table(plain: PlainDirectory) -> None:
    table = INDEX["table"]
    nonce = bytes.fromhex(table["nonce_hex"])
    seen = TableReader.open(plain, table["table_id"], slots=table["slots"], nonce=nonce)
    words = {int(slot): tuple(word[1:3]) for slot, word in table["words"].items()}
    (moves,) = seen.poll()
    assert slots_of([moves]) == sorted(words)
    assert {slot: seen.word(slot) for slot in words} == words
    first, _, records = moves
    for slot, (_, committed, _, tail) in table["words"].items():
        record = records[32 * (int(slot) - first) :][:32]
        assert record[:28] == bytes.fromhex(tail).ljust(28, b"\0")
        fits = zlib.crc32(record, layout.HEADER_BYTES + committed) == layout.TAIL_RESIDUE
        assert fits is (tail != "")
    seen.close()


@pytest.fixture(scope="module")
def c_writer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The writer that was made from FORMAT.md alone."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc or gcc) on this machine")
    built = tmp_path_factory.mktemp("c") / "writer"
    source = Path(__file__).with_name("writer_from_page.c")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([compiler, *flags, "-o", str(built), str(source)], check=True)
    return str(built)


def run_c(command: list[str], lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    run = subprocess.run(
        command, input=text, text=True, capture_output=True, timeout=30, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@each_written
def test_a_c_writer_made_from_the_page_writes_the_same_bytes(
    c_writer: str, plain: PlainDirectory, log: dict[str, Any]
) -> None:
    lines = [f"T {token or '-'}" for token in log["tokens_hex"]]
    if (end := log["end"]) is not None:
        stop = end["stop_sequence_hex"]
        stop = "none" if stop is None else stop or "-"
        counts = f"{end['prompt_tokens']} {end['completion_tokens']} {end['cached_tokens']}"
        text = end["text"].encode().hex() or "-"
        lines.append(f"E {end['code']} {end['reason']} {stop} {counts} {text}")
    size, now = str(INDEX["file_bytes"]), str(INDEX["clock_ns"])
    run_c([c_writer, plain.path, log["stream_id"], size, now], lines)
    check(plain, log)
    path = Path(plain.path, layout.log_name(log["stream_id"]))
    assert generate.compact(path) == (generate.HERE / f"{log['name']}.bin").read_bytes()
    assert os.stat(path).st_mode & 0o777 == layout.FILE_MODE


def test_a_c_writer_made_from_the_page_writes_the_same_table(
    c_writer: str, plain: PlainDirectory
) -> None:
    table = INDEX["table"]
    lines = [
        f"S {slot} {turn} {committed} {int(ended)} {tail or '-'}"
        for slot, (turn, committed, ended, tail) in table["words"].items()
    ]
    numbers = [str(table["slots"]), str(INDEX["clock_ns"])]
    run_c([c_writer, plain.path, table["table_id"], *numbers, table["nonce_hex"]], lines)
    check_table(plain)
    path = Path(plain.path, layout.table_name(table["table_id"]))
    assert generate.compact(path) == (generate.HERE / "table.bin").read_bytes()
