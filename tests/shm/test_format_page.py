"""FORMAT.md, layout.py and the code say the same."""

from __future__ import annotations

import pytest

from rrpa_sidecar.shm import format_page, layout


def test_the_tables_of_the_page_are_those_of_the_layout() -> None:
    page = format_page.PAGE.read_text()
    assert format_page.render(page) == page


def test_a_changed_page_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert format_page.main([]) == 0
    monkeypatch.setattr(layout, "VERSION", 2)
    assert format_page.main([]) == 1
    assert "--write" in capsys.readouterr().err


@pytest.mark.parametrize("fields", [layout.LOG_FIELDS, layout.TABLE_FIELDS])
def test_fields_are_aligned_in_order_and_do_not_overlap(fields: tuple[layout.Field, ...]) -> None:
    at = 0
    for field in fields:
        assert field.offset >= at, field.name
        if field.kind != "bytes":
            assert field.offset % {"u32": 4, "u64": 8}.get(field.kind, 1) == 0
        at = field.offset + field.size
    assert at <= layout.HEADER_USED_BYTES


def test_the_offsets_that_the_code_uses_are_those_of_the_tables() -> None:
    log = {field.name: field for field in layout.LOG_FIELDS}
    assert log["birth_crc32"].offset == layout.BIRTH_CRC_OFFSET
    assert log["cursor"].offset == layout.CURSOR_OFFSET
    assert log["cursor_complement"].offset == layout.COMPLEMENT_OFFSET
    assert log["state"].offset == layout.STATE_OFFSET
    assert log["first_commit_ns"].offset == layout.FIRST_COMMIT_OFFSET
    assert log["tokens"].offset == layout.TOKENS_OFFSET
    assert log["final_bytes"].offset == layout.END_OFFSET
    assert log["end_crc32"].offset == layout.END_CRC_OFFSET
    assert (log["stop_sequence"].offset, log["stop_sequence"].size) == (
        layout.STOP_OFFSET,
        layout.STOP_LIMIT_BYTES,
    )
    assert (log["text"].offset, log["text"].size) == (layout.TEXT_OFFSET, layout.TEXT_LIMIT_BYTES)
    table = {field.name: field for field in layout.TABLE_FIELDS}
    assert (table["nonce"].offset, table["nonce"].size) == (
        layout.NONCE_OFFSET,
        layout.NONCE_BYTES,
    )
    assert layout.END_STOP_OFFSET == 3584


def test_what_a_poll_reads_lies_in_one_cache_line() -> None:
    first, last = layout.CURSOR_OFFSET, layout.FIRST_COMMIT_OFFSET + 7
    assert first // 64 == last // 64
