"""POST /v2/messages by curl: text in pieces, errors in words, failures that show."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.edge.conftest import MAX_REQUEST_BYTES
from tests.edge.fake_sidecar import SENTENCE
from tests.edge.support import CURL_FAILED_STREAM, Edge, Reply

TEXT = "text/plain; charset=utf-8"
GONE = "RRPA deprecated. Use /v2/messages with raw token streaming."


def assert_says(reply: Reply, status: int, sentence: str) -> None:
    assert (reply.status, reply.body) == (status, sentence), reply
    assert reply.exit_code == 0, "an error before the first byte is a whole answer"
    assert reply.header("content-type") == [TEXT]


def test_answer_is_the_tokens_bytes_and_nothing_else(edge: Edge) -> None:
    reply = edge.post({"model": "x", "max_tokens": 3})
    assert_says(reply, 200, "token0 token1 token2 ")
    assert "HTTP/2" in reply.head[0]


def test_answer_without_a_token_is_an_empty_text(edge: Edge) -> None:
    assert_says(edge.post({"model": "x"}), 200, "")


@pytest.mark.parametrize("when", ["refused", "accepted-then-failed"])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("INVALID_ARGUMENT", 400),
        ("NOT_FOUND", 404),
        ("RESOURCE_EXHAUSTED", 429),
        ("INTERNAL", 500),
        ("DATA_LOSS", 500),
        ("UNAVAILABLE", 503),
        ("DEADLINE_EXCEEDED", 504),
    ],
)
def test_error_before_the_first_byte_is_the_sidecars_sentence(
    edge: Edge, when: str, code: str, status: int
) -> None:
    assert_says(edge.post({"model": when, "prompt": code}), status, SENTENCE)


def test_stream_that_fails_half_way_is_visibly_broken(edge: Edge) -> None:
    reply = edge.post({"model": "fails", "max_tokens": 3})
    assert reply.body == "token0 token1 token2 ", "what came before the failure is delivered"
    assert reply.exit_code == CURL_FAILED_STREAM
    assert "INTERNAL_ERROR" in reply.complaint


@pytest.mark.parametrize(
    "body",
    [
        "hello",
        "[]",
        '{"model":',
        '{"model": 5}',
        '{"model": "x", "max_tokens": "many"}',
        '{"model": "x", "max_tokens": 2147483648}',
        '{"model": "x", "prompt": {"a":\n\n1}}',
        json.dumps({"model": "x", "temperature": "ü" * 400}),
    ],
)
def test_json_that_is_no_request_is_refused_in_one_short_line(edge: Edge, body: str) -> None:
    reply = edge.post(body)
    assert (reply.status, reply.exit_code) == (400, 0), reply
    assert reply.header("content-type") == [TEXT]
    assert reply.body.isprintable()
    assert 0 < len(reply.body.encode()) < 200


def test_old_path_is_gone_and_says_what_to_use(edge: Edge) -> None:
    assert_says(edge.curl(path="/v1/messages"), 410, GONE)
    for _ in range(10):  # a POST's body may arrive after the answer: see read_request.lua
        assert_says(edge.curl("-d", '{"model": "x"}', path="/v1/messages"), 410, GONE)


@pytest.mark.parametrize(
    ("path", "arguments", "status"),
    [
        ("/v2/messages", [], 405),
        ("/v2/messages", ["-X", "DELETE"], 405),
        ("/v2/messages?model=x", ["-d", '{"model": "x"}'], 400),
        ("/", [], 404),
        ("/rrpa.v1.RRPAService/CreateMessage", ["-d", '{"model": "x"}'], 404),
        ("/v2/messages%2fx", [], 404),
    ],
)
def test_other_requests_are_refused_in_words(
    edge: Edge, path: str, arguments: list[str], status: int
) -> None:
    reply = edge.curl(*arguments, path=path)
    assert (reply.status, reply.exit_code) == (status, 0), reply
    assert reply.header("content-type") == [TEXT]
    assert reply.body


def test_request_of_the_limits_size_passes_and_one_of_twice_that_does_not(edge: Edge) -> None:
    def post(size: int) -> Reply:
        text = json.dumps({"model": "size", "prompt": ""})
        body = text.replace('""', f'"{"a" * (size - len(text))}"')
        assert len(body) == size
        path = edge.folder / "body.json"
        path.write_text(body)
        return edge.curl("-H", "expect:", "--data-binary", f"@{path}")

    assert post(MAX_REQUEST_BYTES).status == 200
    assert post(2 * MAX_REQUEST_BYTES).status == 200, "the sidecar judges the message, not the text"
    for size in (2 * MAX_REQUEST_BYTES + 1, 3 * MAX_REQUEST_BYTES):
        reply = post(size)
        assert (reply.status, reply.exit_code) == (413, 0), reply
        assert str(2 * MAX_REQUEST_BYTES) in reply.body
    # Refused unread: what curl 7.88 makes of that is its own matter, but it never succeeds.
    assert post(8 * MAX_REQUEST_BYTES).status in (0, 413)
    assert edge.post({"model": "x"}).status == 200


def test_http1_is_turned_away_with_a_sentence(edge: Edge) -> None:
    for version in ("--http1.1", "--http1.0"):
        reply = edge.curl(version, "-d", '{"model": "x"}')
        assert (reply.status, reply.exit_code) == (505, 0), reply
        assert "HTTP/2" in reply.body


def test_unencrypted_caller_is_cut_off_and_others_go_on(edge: Edge) -> None:
    plain = subprocess.run(
        ["curl", "-sS", "-m", "5", edge.url("/").replace("https", "http")],
        capture_output=True,
        check=False,
    )
    assert plain.returncode != 0
    assert edge.post({"model": "x"}).status == 200
