"""A benchmark's result and its JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SPREAD_KEYS = {"median", "min", "max", "runs"}


@dataclass(slots=True)
class Result:
    """What a benchmark measured.

    load: payload, streams, times, rounds, client; what one needs to argue with the figures.
    results: rows; a measured figure is a spread (see spread.py), its key ends with its unit.
    ratios: peer → the product's cost divided by the peer's, for the load that `load` names
      first; below 1 the product is cheaper.
    notes: what was left out and why, and what else a reader must know.
    command: what was typed, without the files to save in.
    defects: what the product did wrong; a benchmark that only measures finds none.
    """

    name: str
    machine: dict[str, Any]
    load: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: str = ""
    defects: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the JSON's content. Raises ValueError if it would break the schema."""
        document = asdict(self)
        if found := faults(document):
            raise ValueError(f"result of {self.name}: {'; '.join(found)}")
        return document


def faults(document: Any) -> list[str]:
    """Return a sentence for each way in which `document` is not a result's JSON."""
    if not isinstance(document, dict):
        return [f"expected an object, found {type(document).__name__}"]
    kinds = {"name": str, "machine": dict, "load": dict, "results": list, "ratios": dict}
    found = [
        f"{key}: expected {kind.__name__}, found {type(document.get(key)).__name__}"
        for key, kind in kinds.items()
        if not isinstance(document.get(key), kind)
    ]
    if found:
        return found
    if not document["results"]:
        found.append("results: expected at least one row, found none")
    for number, row in enumerate(document["results"]):
        if not isinstance(row, dict):
            found.append(f"results[{number}]: expected an object")
            continue
        for key, value in row.items():
            if isinstance(value, dict) and "median" in value:
                found += [f"results[{number}].{key}: {fault}" for fault in _spread_faults(value)]
    for peer, ratio in document["ratios"].items():
        if not isinstance(ratio, int | float) or not ratio > 0:
            found.append(f"ratios[{peer}]: expected a number above 0, found {ratio!r}")
    return found


def _spread_faults(value: dict[str, Any]) -> list[str]:
    if set(value) != SPREAD_KEYS:
        return [f"expected {sorted(SPREAD_KEYS)}, found {sorted(value)}"]
    if not value["runs"]:
        return ["runs: expected at least one"]
    if not value["min"] <= value["median"] <= value["max"]:
        return [f"median {value['median']} is not between {value['min']} and {value['max']}"]
    return []


def save(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Any]:
    """Return the result saved in `path`. Raises ValueError when it holds none."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise ValueError(f"{path} is no result of a benchmark: {exc}") from exc
    if found := faults(document):
        raise ValueError(f"{path} is no result of a benchmark: {'; '.join(found)}")
    return document
