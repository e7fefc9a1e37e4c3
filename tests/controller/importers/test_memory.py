"""A log of any size is imported in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.imports import TOKENIZER

SMALL_MB, LARGE_MB = 6, 60
SHARE = 0.3
"""Of the additional bytes, what the large dump may take more than the small one (which fills all
buffers already): a reader that holds the text even once takes more than all of them."""

_IMPORT = """
import resource, sys
from pathlib import Path
from steersman.controller.runs.importing import import_run
info = import_run("verl", Path(sys.argv[1]), Path(sys.argv[2]), {"tokenizer": sys.argv[3]})
print(info.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
LONG_WORD = "x" * 100
"""Few tokens to a byte, so that the test is about reading and not about tokenizing."""


def dump(folder: Path, megabytes: int) -> int:
    """Rows of a made-up dump of that size, no two with the same answer."""
    folder.mkdir()
    size = rows = 0
    with (folder / "1.jsonl").open("w") as file:
        while size < megabytes * 1_000_000:
            answer = f"{rows}-{LONG_WORD} " * 200
            record = {"input": "why is that " * 20, "output": answer, "score": 1.0, "step": 1}
            size += file.write(json.dumps(record) + "\n")
            rows += 1
    return rows


def peak_mb(folder: Path, megabytes: int) -> float:
    rows = dump(folder, megabytes)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, folder, folder / "run.parquet", TOKENIZER],
        capture_output=True,
        text=True,
        check=True,
    )
    imported, peak = done.stdout.split()
    assert int(imported) == rows
    return float(peak)


def test_a_dump_ten_times_as_large_takes_hardly_more_memory(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    more = peak_mb(tmp_path / "large", LARGE_MB) - peak_mb(tmp_path / "small", SMALL_MB)
    assert more < SHARE * (LARGE_MB - SMALL_MB)
