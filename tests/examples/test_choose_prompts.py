"""The example of the README runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[2] / "examples" / "choose_prompts.py"


def test_the_example_resumes_and_finds_the_prompts_that_teach() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT)], capture_output=True, text=True, check=True
    )
    first, then = (int(word[:-1]) for word in done.stdout.split() if word.endswith("%"))
    assert first > 50  # the data set's own share is below a half
    assert then > first
