"""1,024 of a million prompts are chosen in 50 ms; all that is known of one takes 64 bytes.

One core, CPU time of this process, median, after every prompt has been rolled out once; the memory
is that of policy, estimator and chooser, without the ids, which are the data set's.
"""

import statistics
import sys
import time

import numpy as np
import pytest

from steersman.controller.prompts.chooser import PromptChooser
from steersman.policies.prompting import FinishedGroups
from steersman.policies.prompts.prompt_value import PromptValue

PROMPTS, CHOSEN, GROUP_SIZE, AT_ONCE = 1_000_000, 1024, 8, 20_000
LIMIT_S, LIMIT_BYTES = 0.050, 64
STEPS = 9

pytestmark = pytest.mark.benchmark


def answered(key: np.ndarray, size: np.ndarray, version: int) -> FinishedGroups:
    """Groups of any pass rates."""
    rng, m = np.random.default_rng(version), len(key)
    rate = np.repeat(rng.random(m), size)
    return FinishedGroups(
        group_id=np.arange(m) + PROMPTS * (version + 1),
        prompt_key=key,
        weight_version=np.full(m, version),
        group_row=np.repeat(np.arange(m), size),
        trajectory_id=np.arange(len(rate)),
        reward=(rng.random(len(rate)) < rate).astype(np.float64),
        tokens=rng.integers(1, 2000, len(rate)),
        truncated=np.zeros(len(rate), dtype=np.bool_),
        step=version,
        weight_version_now=version,
    )


@pytest.fixture(scope="module")
def experienced() -> PromptChooser:
    chooser = PromptChooser(PromptValue(), group_size=GROUP_SIZE, max_new_tokens=2000)
    chooser.set_pool(range(PROMPTS))
    order = np.random.default_rng(0).permutation(PROMPTS)
    for version, first in enumerate(range(0, PROMPTS, AT_ONCE)):
        key = order[first : first + AT_ONCE]
        chooser.finished(answered(key, np.full(len(key), GROUP_SIZE), version))
    return chooser


def test_prompts_of_a_step_are_chosen_in_time_and_so_are_those_of_a_refill(
    experienced: PromptChooser, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = PROMPTS // AT_ONCE
    first, refill, learning = [], [], []
    for step in range(begun, begun + STEPS):
        started = time.process_time()
        chosen = experienced.choose(CHOSEN, step, step)
        first.append(time.process_time() - started)
        groups = answered(chosen.prompt_key, chosen.size, step)
        started = time.process_time()
        accepted = int(experienced.finished(groups).accepted.sum())
        learning.append(time.process_time() - started)
        started = time.process_time()
        experienced.choose(max(CHOSEN - accepted, 1), step, step, refill=1)
        refill.append(time.process_time() - started)
    taken = {"choose": first, "refill": refill, "learn": learning}
    with capsys.disabled():
        parts = ", ".join(f"{k} {1e3 * statistics.median(v):.1f} ms" for k, v in taken.items())
        sys.stdout.write(f"\n{CHOSEN} of {PROMPTS} prompts: {parts}\n")
    assert statistics.median(first) <= LIMIT_S
    assert statistics.median(refill) <= LIMIT_S


def test_all_that_is_known_of_a_prompt_takes_at_most_64_bytes(
    experienced: PromptChooser, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = experienced.policy.state_dict()
    # the policy's own: groups that are open now, some tens of bytes each, none by prompt
    own = sum(sys.getsizeof(row) + sum(map(sys.getsizeof, row)) for row in policy["open"])
    each = (experienced.nbytes + own) / PROMPTS
    with capsys.disabled():
        sys.stdout.write(f"\n{each:.1f} bytes per prompt\n")
    assert each <= LIMIT_BYTES
