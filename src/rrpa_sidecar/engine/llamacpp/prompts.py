"""From a request to the text that the model continues. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.pb import rrpa_pb2

Turn = tuple[str, str]
"""Role and content."""
BETWEEN_TURNS = "\n\n"
_MARKS = range(0xFDD0, 0xFDF0)
"""Noncharacters: no text that means anything holds them."""


def prompt_of(
    request: rrpa_pb2.CreateStreamRequest, template: Callable[[Sequence[Turn]], str] | None
) -> str:
    """Return the prompt.

    template: the model's own chat template; None: a base model, which has none. Then the
    contents are joined with an empty line in between and roles are left out, so that the
    model goes on writing after the last one.

    Raises:
      InvalidRequest: neither or both of prompt and messages, or nothing in them.
    """
    if request.HasField("prompt") == bool(request.messages):
        what = "both prompt and messages" if request.messages else "neither prompt nor messages"
        raise InvalidRequest(f"the request has {what}; give one of them")
    if request.messages:
        turns = [(message.role, message.content) for message in request.messages]
        if template is not None:
            return _with_nuls(turns, template)
        prompt = BETWEEN_TURNS.join(content for _, content in turns if content)
    else:
        prompt = request.prompt
    if not prompt:
        raise InvalidRequest("the prompt is empty; say something to continue")
    return prompt


def _with_nuls(turns: Sequence[Turn], template: Callable[[Sequence[Turn]], str]) -> str:
    """Apply the template, which takes C strings, without losing what follows a NUL."""
    whole = "".join(role + content for role, content in turns)
    if "\0" not in whole:
        return template(turns)
    mark = next((chr(code) for code in _MARKS if chr(code) not in whole), None)
    if mark is None:
        raise InvalidRequest("the messages hold NUL and every noncharacter; leave one out")
    marked = [(role.replace("\0", mark), content.replace("\0", mark)) for role, content in turns]
    return template(marked).replace(mark, "\0")
