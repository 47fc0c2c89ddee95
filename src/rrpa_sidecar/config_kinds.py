"""The kinds of values that settings have: how each is read, checked, shown and explained."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

UNIX_PATH_LIMIT_BYTES = 107
"""Longest AF_UNIX path on Linux: sun_path has 108 bytes, one of them the final NUL."""

BELL_SUFFIX = ".bell"
"""The doorbell's path is the engine socket's path with this at its end."""

_SIZES = {"": 1, "B": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3, "TIB": 1024**4}


@dataclass(frozen=True, slots=True)
class Kind:
    """How texts become values of one kind.

    metavar: what the help page shows in place of the value; the unit, where there is one.
    parse: text → value; ValueError with "found …; expected …" says what is wrong.
    show: value → the text a person would type.
    """

    metavar: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`.

    Raises:
      ValueError: `text` is neither, or the port is not in 0 to 65535.
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})", text)
    if found is None or int(found[3]) > 65535:
        raise ValueError(f"found {text!r}; expected HOST:PORT, as in localhost:50051 or [::1]:0")
    return found[1] or found[2], int(found[3])


def _address(text: str) -> str:
    split_address(text)
    return text


def _loopback(text: str) -> str:
    host, _ = split_address(text)
    if host not in ("localhost", "::1") and not re.fullmatch(r"127(\.\d{1,3}){3}", host):
        raise ValueError(f"found {text!r}; expected a loopback address, as in 127.0.0.1:9901")
    return text


def _unix_path(text: str, suffix: str = "") -> str:
    if not text.startswith("/") or "\0" in text or text.endswith("/"):
        raise ValueError(f"found {text!r}; expected an absolute path of a socket")
    limit = UNIX_PATH_LIMIT_BYTES - len(suffix)
    length = len(os.fsencode(text))
    if length > limit:
        why = f" ({UNIX_PATH_LIMIT_BYTES} with {suffix})" if suffix else ""
        raise ValueError(
            f"the path has {length} bytes; a Unix socket's may have {limit}{why}; use a shorter"
            " directory"
        )
    return text


def _directory(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError(f"found {text!r}; expected an absolute path of a directory")
    return text.rstrip("/") or "/"


def _optional_file(text: str) -> str:
    if text and not os.path.isfile(text):
        raise ValueError(f"found {text!r}, which is no readable file; expected a PEM file")
    return text


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", text)
    if found is None or found[2].upper() not in _SIZES or int(found[1]) == 0:
        raise ValueError(f"found {text!r}; expected a size above 0: 16777216, 64KiB, 16MiB, 2GiB")
    return int(found[1]) * _SIZES[found[2].upper()]


def show_size(value: int) -> str:
    """Return `16MiB` for 16777216, the plain number where no unit divides it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % _SIZES[unit.upper()] == 0:
            return f"{value // _SIZES[unit.upper()]}{unit}"
    return str(value)


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = math.nan
    if not 0 <= value <= 86400:
        raise ValueError(f"found {text!r}; expected seconds from 0 to 86400, as in 0.5 or 30")
    return value


def _seconds_from(least_s: float, text: str) -> float:
    value = _seconds(text)
    if value < least_s:
        raise ValueError(f"found {text!r}; expected seconds from {least_s:g} to 86400")
    return value


def _count(text: str, least: int = 0) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", text) or not least <= int(text) <= 1_000_000:
        raise ValueError(f"found {text!r}; expected a whole number from {least} to 1000000")
    return int(text)


def choice(*names: str) -> Kind:
    """Return the kind whose values are `names`."""

    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(f"found {text!r}; expected one of {', '.join(names)}")
        return text.lower()

    return Kind("|".join(names), parse)


def kind_of_default(default: Any) -> Kind:
    """Return the kind a setting has when its line names none."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise TypeError(f"a setting with the default {default!r} must name its kind")
    return COUNT if isinstance(default, int) else SECONDS


ADDRESS = Kind("HOST:PORT", _address)
LOOPBACK = Kind("HOST:PORT", _loopback)
UNIX_PATH = Kind("PATH", _unix_path)
ENGINE_PATH = Kind("PATH", lambda text: _unix_path(text, BELL_SUFFIX))
DIRECTORY = Kind("DIR", _directory)
OPTIONAL_FILE = Kind("FILE", _optional_file)
SIZE = Kind("SIZE", _size, show_size)
SECONDS = Kind("SECONDS", _seconds, lambda value: f"{value:g}")
POSITIVE_SECONDS = Kind("SECONDS", partial(_seconds_from, 0.001), lambda value: f"{value:g}")
ONE_SECOND_OR_MORE = Kind("SECONDS", partial(_seconds_from, 1), lambda value: f"{value:g}")
COUNT = Kind("COUNT", _count)
POSITIVE = Kind("COUNT", lambda text: _count(text, least=1))
