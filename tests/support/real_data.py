"""Sets of real samples that are not part of this project: tests that want one skip without it."""

import os
from pathlib import Path

import pytest

FOLDER = Path(
    os.environ.get("STEERSMAN_DATA", Path(__file__).parents[2].parent / "shared" / "data")
)


def real_data(name: str) -> Path:
    """The file, or skip the test."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"needs {path}; set STEERSMAN_DATA to the folder that holds {name}")
    return path
