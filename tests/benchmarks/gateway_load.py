"""What a gateway adds, measured against the engines alone and against a public peer, in one run.

    python tests/benchmarks/gateway_load.py [--peer vllm-router] [--rounds 5] [--streams]
        [--together] [--json]

Two fake engines (one process each: 100 tokens in half a second, whatever the load; `--streams`: in
two seconds, an event for each) are asked directly, through `steersman serve`, and through a peer if
one is named.  Rounds alternate, so that each figure has its pair in the same round, and nothing
else is attached to the engines meanwhile: an idle gateway looks at them too.  Medians over rounds
are printed.  `added` is the difference of the quantiles to asking directly.

What is measured has a core of its own, as a gateway has that is not beside its clients; engines and
load have the others, also where they are asked directly.  With `--together` all run where the
kernel puts them: of two cores, load and engines then sometimes wait for the gateway, which counts
as its latency (p50 +.5 instead of +.3 ms, p99 +1.6 instead of +.8).  Not a test: a shared machine
makes p99 what it likes.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

HERE = Path(__file__).resolve().parents[1]
BODY = {"model": "fake-model", "prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": True}
TICK_S = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))
WARM_S = 4.0
"""Of each round, before answers count: connections are made and the first wave has gone apart."""


@dataclass(frozen=True)
class Work:
    """What is asked."""

    open: tuple[int, ...]
    """Requests at once, in turn."""
    token_s: float
    body: dict[str, Any]


WHOLE = Work((256, 512), 0.005, BODY)
STREAMS = Work((64, 128), 0.02, BODY | {"stream": True})


@dataclass(frozen=True)
class Places:
    """The cores of what is measured, and of what measures it."""

    measured: frozenset[int]
    measuring: frozenset[int]

    @classmethod
    def of(cls, together: bool) -> "Places":
        """On this machine."""
        if together or len(CORES) < 2:
            return cls(frozenset(CORES), frozenset(CORES))
        return cls(frozenset(CORES[:1]), frozenset(CORES[1:]))


@contextmanager
def on(cores: frozenset[int]) -> Iterator[None]:
    """What is started meanwhile stays on them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def process(command: Sequence[str], url: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own, up when it is yielded; `url`, or the first line it prints."""
    out = subprocess.DEVNULL if url else subprocess.PIPE
    server = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, text=True)
    try:
        if not url:
            assert server.stdout is not None
            url = next(word for word in server.stdout.readline().split() if "://" in word)
        for _ in range(300):
            try:
                urlopen(url + "/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield server, url.rstrip(".,")
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


def load(
    urls: Sequence[str], body: dict[str, Any], concurrency: int, seconds: float
) -> dict[str, Any]:
    """One measurement."""
    command = [sys.executable, str(HERE / "support/load.py"), *urls, "--body", json.dumps(body)]
    command += ["--open", str(concurrency), "--seconds", str(seconds), "--warm", f"{WARM_S:g}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK_S


def rss_mib(pid: int) -> float:
    """Its resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measure(
    work: Work, peer: str, rounds: int, seconds: float, serve: Sequence[str], places: Places
) -> dict[str, Any]:
    """All figures, by number of open requests and target."""
    with ExitStack() as stack, on(places.measuring):
        fake = [sys.executable, str(HERE / "support/fast_vllm.py"), "--port", "0"]
        fake += ["--token-s", f"{work.token_s:g}", "--max-num-seqs", "1024"]
        engines = [stack.enter_context(process(fake))[1] for _ in range(2)]
        names = ["direct", "steersman", *(["peer"] if peer else [])]
        found: dict[str, Any] = {}
        for concurrency in work.open:
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for turn in range(rounds):
                at = turn % len(names)
                for name in names[at:] + names[:at]:
                    with between(name, engines, peer, serve, places) as (pid, urls):
                        runs[name].append(run_of(pid, urls, work.body, concurrency, seconds))
            found[str(concurrency)] = {name: compared(runs, name) for name in names}
    return found


@contextmanager
def between(
    name: str, engines: list[str], peer: str, serve: Sequence[str], places: Places
) -> Iterator[tuple[int, list[str]]]:
    """What is asked, up for this one run: its process (0: none of its own) and where it listens."""
    if name == "direct":
        yield 0, engines
        return
    if name == "peer":
        port = random.randint(20000, 32000)  # below those that outgoing connections are given
        command = [peer, "--worker-urls", *engines, "--port", str(port), "--policy"]
        command += ["round_robin", "--host", "127.0.0.1", "--log-level", "error"]
        url = f"http://127.0.0.1:{port}"
    else:
        command = [str(Path(sys.executable).with_name("steersman")), "serve", "--engines"]
        command, url = [*command, *engines, "--port", "0", *serve], ""
    with ExitStack() as stack:
        with on(places.measured):
            server, listens = stack.enter_context(process(command, url))
        yield server.pid, [listens]


def run_of(
    pid: int, urls: list[str], body: dict[str, Any], concurrency: int, seconds: float
) -> dict[str, Any]:
    """One measurement, with what it cost the process between."""
    before_s = cpu_s(pid) if pid else 0.0
    run = load(urls, body, concurrency, seconds)
    used_s = cpu_s(pid) - before_s if pid else 0.0
    run["cpu_ms"] = 1e3 * used_s / (run["per_s"] * (seconds + WARM_S))
    run["cpu_event_us"] = 1e3 * run["cpu_ms"] * run["per_s"] / max(run["events_per_s"], 1.0)
    run["rss_mib"] = rss_mib(pid) if pid else 0.0
    return run


def compared(runs: dict[str, list[dict[str, Any]]], name: str) -> dict[str, float]:
    """Medians over rounds, paired with asking directly."""
    pairs = list(zip(runs[name], runs["direct"], strict=True))
    figures = {
        "added_p50_ms": statistics.median(a["p50_ms"] - b["p50_ms"] for a, b in pairs),
        "added_p99_ms": statistics.median(a["p99_ms"] - b["p99_ms"] for a, b in pairs),
        "throughput_ratio": statistics.median(a["per_s"] / b["per_s"] for a, b in pairs),
        "per_s": statistics.median(a["per_s"] for a, _ in pairs),
        "failures": sum(a["failures"] for a, _ in pairs),
        "cpu_ms_per_request": statistics.median(a["cpu_ms"] for a, _ in pairs),
        "rss_mib": max(a["rss_mib"] for a, _ in pairs),
    }
    if any(run["events_per_s"] for run in runs[name]):
        figures["events_per_s"] = statistics.median(a["events_per_s"] for a, _ in pairs)
        figures["cpu_us_per_event"] = statistics.median(a["cpu_event_us"] for a, _ in pairs)
    return figures


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default="", help="command of a vllm-router to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--streams", action="store_true")
    parser.add_argument("--together", action="store_true", help="all on the same cores")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("serve", nargs="*", help="KEY=VALUE for steersman serve")
    args = parser.parse_args(arguments)
    if args.peer and shutil.which(args.peer) is None:
        parser.error(f"there is no command {args.peer!r}")
    work, places = STREAMS if args.streams else WHOLE, Places.of(args.together)
    found = measure(work, args.peer, args.rounds, args.seconds, args.serve, places)
    if args.json:
        print(json.dumps(found, indent=1))  # noqa: T201
        return
    for concurrency, targets in found.items():
        print(f"{concurrency} open requests")  # noqa: T201
        for name, figures in targets.items():
            row = "  ".join(f"{key} {value:9.3f}" for key, value in figures.items())
            print(f"  {name:10} {row}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
