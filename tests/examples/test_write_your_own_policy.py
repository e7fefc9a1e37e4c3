"""The example of the README runs as it stands."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "write_your_own_policy.py"


def test_the_example_places_by_tokens_and_respects_the_batch() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT)], capture_output=True, text=True, check=True
    )
    targets = [line.partition(":")[0] for line in done.stdout.splitlines()]
    # 100 tokens to big; then 80, 30 fill small (its batch is 2 x 0.9); 10 has only big left
    assert targets == ["0 -> big", "1 -> small", "2 -> small", "3 -> big"]
