"""Tests against trainers' own packages: collected only in the environment of one of them.

`make test-trainers` makes the environments and names the trainer in `TRAINER`.
"""

import os
from pathlib import Path

HERE = Path(__file__).parent
TRAINER = os.environ.get("TRAINER", "")

collect_ignore = [str(path) for path in HERE.iterdir() if path.is_dir() and path.name != TRAINER]
