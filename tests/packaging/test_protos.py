"""The protos are clean under buf's STANDARD rules.

buf compiles them itself; google/api/*.proto come from the installed googleapis-common-protos,
so that no registry of modules is asked.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import google.api
import pytest

from tests.packaging.environments import ROOT

BUF = pathlib.Path(sys.executable).parent / "buf"
GOOGLE_API = pathlib.Path(next(iter(google.api.__path__)))


def lint(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run `buf lint` with the committed buf.yaml on the protos in `folder`."""
    return subprocess.run(
        [str(BUF), "lint", str(folder), "--path", str(folder / "rrpa")],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(folder), "BUF_CACHE_DIR": str(folder / ".cache"), "PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def protos(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of proto/ that is complete."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copytree(GOOGLE_API, tmp_path / "proto/google/api", ignore=_all_but_protos)
    return tmp_path / "proto"


def _all_but_protos(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not name.endswith(".proto")}


def test_protos_are_clean_under_buf_lint(protos: pathlib.Path) -> None:
    done = lint(protos)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("FINISH_REASON_UNSPECIFIED = 0", "FINISH_REASON_NONE = 0", "ENUM_ZERO_VALUE_SUFFIX"),
        ("optional sint32 max_tokens = 4", "optional sint32 maxTokens = 4", "FIELD_LOWER_SNAKE"),
        ("service RRPAService", "service RRPA", "SERVICE_SUFFIX"),
        ("  // buf:lint:ignore RPC_REQUEST_STANDARD_NAME\n", "", "RPC_REQUEST_STANDARD_NAME"),
    ],
)
def test_buf_lint_finds_a_fault(protos: pathlib.Path, before: str, after: str, rule: str) -> None:
    path = protos / "rrpa/v1/rrpa.proto"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    done = lint(protos)
    assert done.returncode != 0
    assert rule.split("_")[0] in (done.stdout + done.stderr).upper(), done.stdout


def test_every_field_method_and_value_has_a_comment() -> None:
    """A caller learns units, defaults and what absent means from the proto alone."""
    for path in (ROOT / "proto/rrpa/v1").glob("*.proto"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines[1:], 1):
            word = line.split("//")[0].strip()
            declares = word.endswith(";") and "=" in word and not word.startswith("syntax")
            if declares or word.startswith(("rpc ", "message ", "enum ", "service ", "oneof ")):
                before = lines[number - 1].strip()
                assert before.startswith("//"), f"{path.name}:{number + 1}: {line.strip()}"
