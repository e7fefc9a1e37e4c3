"""What a Python environment has of a trainer, found without importing any of it.

Only the standard library is used: this file is also run by the interpreter of another environment,
with a question as JSON, and prints its answer as JSON.
"""

import importlib.metadata
import importlib.util
import json
import platform
import sys
from pathlib import Path
from typing import Any


def look(question: dict[str, Any]) -> dict[str, Any]:
    """`package`, `module` and `hooks` (pairs of file and text) -> what is there of them.

    `version` is None where no such distribution is installed, `folder` where no such module can be
    imported; `missing` are the hooks that are not found.
    """
    folder = _folder(question["module"])
    hooks = question["hooks"] if folder is not None else []
    return {
        "python": platform.python_version(),
        "version": _version(question["package"]),
        "folder": None if folder is None else str(folder),
        "missing": [[path, text] for path, text in hooks if not _has(folder, path, text)],
        "steersman": _version("steersman"),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _folder(module: str) -> Path | None:
    """Where a top module lies; finding one runs nothing of it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def _has(folder: Path | None, path: str, text: str) -> bool:
    if folder is None:
        return False
    try:
        return text in (folder / path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


if __name__ == "__main__":
    json.dump(look(json.loads(sys.argv[1])), sys.stdout)
