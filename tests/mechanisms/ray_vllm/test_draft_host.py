"""The keeper of a draft store, without Ray."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator

import numpy as np
import pytest
from support.processes import processes_of, wait_until

from steersman.estimators.errors import FleetError
from steersman.mechanisms.drafting._memory import path_of
from steersman.mechanisms.drafting.drafter import Drafter
from steersman.mechanisms.drafting.source import DraftClass
from steersman.mechanisms.drafting.store import DraftStore
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    AttemptRequest,
    EndReason,
    Sampling,
    VersionSpan,
)
from steersman.mechanisms.ray_vllm.draft_host import CONTEXT_TOKENS, DraftHost, pack

PATIENCE_S = 20.0


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def host(name: str) -> Iterator[DraftHost]:
    host = DraftHost(name, 4096)
    yield host
    host.close()


def attempt(prompt: list[int], tokens: list[int], key: int, group: int, version: int) -> Attempt:
    asked = AttemptRequest("a", prompt, 100, Sampling(), prompt_key=key, group_id=group)
    half = len(tokens) // 2
    spans = [VersionSpan(version - 1, 0, half), VersionSpan(version, half, len(tokens))]
    end = AttemptEnd(EndReason.LENGTH, tokens, [0.0] * len(tokens), spans)
    return Attempt(asked, "r", end=end)


def test_what_attempts_wrote_is_drafted_from_after_the_tail_of_what_stood_before(
    host: DraftHost,
) -> None:
    long = list(range(100, 200))
    attempts = [attempt(long, [1, 2, 3, 4], 7, 5, 3), attempt([8, 9], [6, 7, 8], 11, 6, 4)]
    host.append(pack(attempts))
    drafter = Drafter(DraftStore.attach(host.store()), 4, least_chance=0.0)
    one, two = np.array(long, np.int32), np.array([8, 9], np.int32)
    rows = np.zeros((2, 100), np.int32)
    rows[0], rows[1, :2] = one, two
    drafts = drafter.propose(
        rows, np.array([100, 2]), np.array([7, 11]), np.array([5, -1]), np.array([4, 4])
    )
    assert drafts.tokens[0, : drafts.counts[0]].tolist() == [1, 2, 3, 4]
    assert drafts.tokens[1, : drafts.counts[1]].tolist() == [6, 7, 8]
    assert drafts.classes.tolist() == [DraftClass.SIBLING, DraftClass.HISTORY]


def test_a_batch_carries_no_more_of_a_prompt_than_is_looked_up() -> None:
    documents = pack([attempt(list(range(1000)), [1, 2], 7, 5, 3)])
    assert documents.contexts.tolist() == [CONTEXT_TOKENS]
    assert documents.tokens.tolist() == [*range(1000 - CONTEXT_TOKENS, 1000), 1, 2]
    assert documents.weight_versions.tolist() == [3]  # what wrote its end


def test_pushed_weights_are_known_to_the_store(host: DraftHost) -> None:
    host.advance(5)
    assert host.stats().weight_version == 5


def test_a_keeper_that_closes_leaves_nothing(name: str) -> None:
    host = DraftHost(name, 4096)
    assert not path_of(name).exists()
    assert host.store() == name
    assert path_of(name).exists()
    host.close()
    assert not path_of(name).exists()
    with pytest.raises(FleetError):
        DraftStore.attach(name)


KEEP = """
import sys
from steersman.mechanisms.ray_vllm.draft_host import DraftHost
host = DraftHost(sys.argv[1], 4096)
host.store()
print("kept", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_file_of_a_keeper_that_is_killed_with_its_group_is_removed(
    name: str, how: signal.Signals
) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEP, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"kept\n"
        assert path_of(name).exists()
        # Ray kills an actor's children with it: there must be none.
        assert processes_of(keeper.pid) == [keeper.pid]
        os.killpg(keeper.pid, how)
    assert wait_until(lambda: not path_of(name).exists(), PATIENCE_S)
