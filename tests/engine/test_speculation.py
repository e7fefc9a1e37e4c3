"""Drafts on a real engine: whatever is drafted, what is written is what the model would write."""

import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import in_process
from engine.in_process import Ask, Engine, Written
from scipy.stats import chi2

from steersman.mechanisms.drafting.store import DraftStore

pytestmark = pytest.mark.engine

MOST = 8
MAX_MODEL_LEN = 512
PROMPTS = [[5 + i, 11, 7 + 2 * i, 3] for i in range(12)]
VOCABULARY = 64


@pytest.fixture(scope="module")
def engine(fleet_model: Path) -> Iterator[Engine]:
    """Memory for ten sequences of the longest requests here, and prompts read in small pieces."""
    engine = Engine(
        fleet_model,
        MOST,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=2 << 20,
    )
    assert engine.fault == ""
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def full_store(engine: Engine) -> Iterator[DraftStore]:
    """Holds what the model writes greedily to each prompt; prompt i has key i + 1, group i."""
    store = DraftStore.create(f"test-{uuid.uuid4().hex[:8]}", 1 << 16)
    engine.call(in_process.draft_from, None)
    engine.call(in_process.instruct, 0)
    for i, written in enumerate(engine.call(in_process.run, asks(200))[0]):
        tokens = np.array(written.tokens, np.int32)
        store.append(i + 1, i, 0, np.array(PROMPTS[i], np.int32), tokens)
    yield store
    store.close()


@pytest.fixture
def drafting(engine: Engine, full_store: DraftStore) -> Engine:
    """The engine, told to draft all it can from the full store."""
    engine.call(in_process.draft_from, None, full_store.name)
    engine.call(in_process.instruct, MOST)
    return engine


def asks(max_tokens: int, group: int = 0, **more: Any) -> list[Ask]:
    """One of each prompt."""
    return [
        Ask(prompt, max_tokens, prompt_key=i + 1, group_id=i + group, **more)
        for i, prompt in enumerate(PROMPTS)
    ]


def plainly(engine: Engine, requests: list[Ask]) -> tuple[list[Written], int]:
    """Without drafts."""
    engine.call(in_process.instruct, 0)
    answer: tuple[list[Written], int] = engine.call(in_process.run, requests)
    engine.call(in_process.instruct, MOST)
    return answer


def grown(engine: Engine, before: dict[str, list[int]]) -> dict[str, list[int]]:
    """What was counted since."""
    now: dict[str, list[int]] = engine.call(in_process.counted)
    zero = [0, 0, 0]
    return {c: [a - b for a, b in zip(now[c], before.get(c, zero), strict=True)] for c in now}


def tokens_of(written: Sequence[Written]) -> list[list[int]]:
    return [w.tokens for w in written]


def test_vllms_verifier_is_wrong_on_cpu_and_is_repaired(engine: Engine) -> None:
    before, now = engine.call(in_process.verifier_faults)
    assert "reach draft positions as" in before, "vLLM has mended it: the repair can go"
    assert now == ""


@pytest.mark.parametrize(("group", "source"), [(0, "sibling"), (100, "history")])
def test_greedy_tokens_are_the_same_with_drafts_and_take_fewer_iterations(
    drafting: Engine, group: int, source: str
) -> None:
    plain, slow = plainly(drafting, asks(200))
    before = drafting.call(in_process.counted)
    drafted, fast = drafting.call(in_process.run, asks(200, group))
    assert tokens_of(drafted) == tokens_of(plain)
    for a, b in zip(drafted, plain, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
    verified, tokens, accepted = grown(drafting, before)[source]
    assert accepted > 0.5 * tokens > 0
    assert verified >= tokens / MOST
    assert fast < slow / 2


def test_drafts_from_the_request_itself_change_nothing_either(engine: Engine) -> None:
    engine.call(in_process.draft_from, None)
    plain, _ = plainly(engine, asks(200))
    before = engine.call(in_process.counted)
    drafted, _ = engine.call(in_process.run, asks(200))
    assert tokens_of(drafted) == tokens_of(plain)
    assert list(grown(engine, before)) == ["self"] or grown(engine, before)["self"][2] > 0


def test_preempted_requests_with_drafts_write_the_same(drafting: Engine) -> None:
    requests = asks(200) + asks(200, 100)
    plain, _ = plainly(drafting, requests)
    before = drafting.call(in_process.preemptions)
    drafted, _ = drafting.call(in_process.run, requests)
    assert drafting.call(in_process.preemptions) > before
    assert tokens_of(drafted) == tokens_of(plain)


def test_of_two_requests_in_one_batch_one_is_drafted_for_and_then_the_other(
    drafting: Engine,
) -> None:
    one, other = asks(200)[:2]
    pair = [Ask(**{**vars(one), "draft_tokens": MOST}), Ask(**{**vars(other), "draft_tokens": 0})]
    (first, second), _ = drafting.call(in_process.run, pair, switch={6: {0: 0, 1: MOST}})
    assert sum(first.drafted[:6]) > 0
    assert sum(second.drafted[:6]) == 0
    assert sum(first.drafted[6:]) == 0
    assert sum(second.drafted[6:]) > 0
    plain, _ = plainly(drafting, [one, other])
    assert tokens_of([first, second]) == tokens_of(plain)


def test_a_number_smaller_than_the_engines_most_is_kept_to(drafting: Engine) -> None:
    numbers = [1, 2, 3, MOST]
    requests = [
        Ask(**{**vars(ask), "draft_tokens": k}) for ask, k in zip(asks(100), numbers, strict=False)
    ]
    written, _ = drafting.call(in_process.run, requests)
    assert [max(w.drafted) for w in written] == numbers


# -- the distribution at temperature 1 and under filters ------------------------------------------

SAMPLES = 2560
"""Trajectories in each comparison."""
RANKS = [(0, 0), (1, 2), (0, -1), (-1, 0), (5, 5)]
"""Of the tokens drafted in each group: the likeliest, the least likely, and some between."""
BINS = [0, 1, 2, 3, 5, 6, 9, 15, 30, 63]
"""First ranks of the bins; that of each drafted token stands alone."""


class Law:
    """The model's own probabilities, computed by transformers."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import LlamaForCausalLM

        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def next(self, sequences: Any, temperature: float, top_k: int, top_p: float) -> Any:
        """(n, vocabulary) probabilities of what follows each sequence."""
        import torch

        with torch.no_grad():
            logits = self.model(torch.tensor(sequences)).logits[:, -1].double() / temperature
        p = logits.softmax(-1).numpy()
        order = np.argsort(-p, axis=1)
        ranked = np.take_along_axis(p, order, 1)
        if top_k:
            ranked[:, top_k:] = 0.0
            ranked /= ranked.sum(1, keepdims=True)
        ranked[np.cumsum(ranked, 1) - ranked >= top_p] = 0.0
        np.put_along_axis(p, order, ranked / ranked.sum(1, keepdims=True), 1)
        return p

    def of_second_and_third(self, prompt: list[int], *how: Any) -> tuple[Any, Any]:
        """(v, v) and (v, v, v) probabilities of the second and third token after those before.

        The first comes from reading the prompt, so these are the first that are drafted.
        """
        v = VOCABULARY
        second = self.next([[*prompt, a] for a in range(v)], *how)
        third = self.next([[*prompt, a, b] for a in range(v) for b in range(v)], *how)
        return second, third.reshape(v, v, v)


def script_for(second: Any, third: Any) -> Any:
    """(groups, v, 2) tokens to draft after each first token, by their ranks in `RANKS`."""
    script = np.zeros((len(RANKS), VOCABULARY, 2), np.int32)
    for group, (a, b) in enumerate(RANKS):
        script[group, :, 0] = np.argsort(-second, axis=1)[:, a]
        after = third[np.arange(VOCABULARY), script[group, :, 0]]
        script[group, :, 1] = np.argsort(-after, axis=1)[:, b]
    return script


def p_value(written: Sequence[Written], second: Any, third: Any) -> float:
    """Pearson's chi-square test of the second and third tokens' ranks under the law.

    Tokens are put into bins by how likely they were where they stand, and expected as often as the
    law says for just those places.  What was drafted is of one rank in each group, so each group is
    a test of its own; their statistics add up.
    """
    tokens = np.array([w.tokens[:3] for w in written])
    places = (second[tokens[:, 0]], tokens[:, 1]), (third[tokens[:, 0], tokens[:, 1]], tokens[:, 2])
    statistic, freedom = 0.0, 0
    for laws, token in places:
        order = np.argsort(-laws, axis=1)
        rank = np.argmax(order == token[:, None], axis=1)
        ranked = np.take_along_axis(laws, order, 1)
        for group in range(len(RANKS)):
            its = slice(group, None, len(RANKS))
            observed = np.add.reduceat(np.bincount(rank[its], minlength=VOCABULARY), BINS)
            expected = np.add.reduceat(ranked[its].sum(0), BINS)
            common = expected >= 5
            observed = np.append(observed[common], observed[~common].sum())
            expected = np.append(expected[common], expected[~common].sum())
            # The half takes the weight from a rest that is all but impossible.
            statistic += float(((observed - expected) ** 2 / (expected + 0.5)).sum())
            freedom += int((expected > 0.5).sum()) - 1
    return float(chi2.sf(statistic, freedom))


def sampled(engine: Engine, script: Any, how: tuple[Any, ...]) -> list[Written]:
    temperature, top_k, top_p = how
    engine.call(in_process.draft_from, script)
    engine.call(in_process.instruct, MOST)
    requests = [
        Ask([9, 4, 20], 4, temperature, top_p, top_k, group_id=i % len(RANKS))
        for i in range(SAMPLES)
    ]
    written: list[Written] = engine.call(in_process.run, requests)[0]
    assert all(2 in w.drafted for w in written)
    return written


@pytest.mark.parametrize("how", [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.0, 9, 1.0), (1.3, 0, 0.7)])
def test_samples_follow_the_models_law_whatever_is_drafted_and_a_biased_verifiers_do_not(
    engine: Engine,
    fleet_model: Path,
    how: tuple[Any, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    law = Law(fleet_model).of_second_and_third([9, 4, 20], *how)
    script = script_for(*law)
    found = {}
    # Not repaired, the verifier takes any number from memory for top_k, and the engine dies of it.
    wrong = ("not repaired",) if how[1] == 0 else ()
    for biased in ("", *wrong, "refused drafts are drawn again"):
        engine.call(in_process.bias, biased)
        try:
            found[biased] = p_value(sampled(engine, script, how), *law)
        finally:
            engine.call(in_process.bias, "")
    with capsys.disabled():
        sys.stdout.write(f"\np-values of {SAMPLES} at {how}: {found}\n")
    assert found.pop("") > 1e-4
    assert max(found.values()) < 1e-10


def test_reported_logprobs_are_the_models_own(drafting: Engine) -> None:
    before = drafting.call(in_process.counted)
    written, _ = drafting.call(in_process.run, asks(100, temperature=0.7, top_p=0.9))
    assert sum(accepted for _, _, accepted in grown(drafting, before).values()) > 20
    for ask, w in zip(asks(100), written, strict=True):
        scores = drafting.call(in_process.score, ask.prompt + w.tokens)
        np.testing.assert_allclose(w.logprobs, scores[len(ask.prompt) - 1 :], atol=1e-4)


def test_a_seed_and_equal_drafts_give_equal_samples_in_any_batch(drafting: Engine) -> None:
    script = np.random.default_rng(0).integers(0, VOCABULARY, (len(PROMPTS), VOCABULARY, 3))
    drafting.call(in_process.draft_from, script.astype(np.int32))
    seeded = [Ask(**{**vars(ask), "seed": 7}) for ask in asks(60, temperature=1.0)]
    among, _ = drafting.call(in_process.run, [*seeded[:6], *asks(60)])
    alone = [drafting.call(in_process.run, [ask])[0][0] for ask in seeded[:6]]
    assert tokens_of(among[:6]) == tokens_of(alone)
    plain, _ = plainly(drafting, asks(60))
    assert tokens_of(among[6:]) == tokens_of(plain)


# -- where a request ends -------------------------------------------------------------------------


def test_a_seeded_answer_is_the_same_in_whatever_parts_its_prompt_is_read(engine: Engine) -> None:
    """Unrepaired, vLLM on CPU ends the engine here: its generators cannot be set back."""
    engine.call(in_process.instruct, 0)
    prompts = [[3 + (i * k) % 60 for i in range(100)] for k in (1, 3, 7, 11)]
    seeded = [Ask(p, 40, temperature=1.0, seed=5 + k) for k, p in enumerate(prompts)]
    together, iterations = engine.call(in_process.run, seeded)
    assert iterations > 41  # 128 tokens at a time: three of four prompts are read in two parts
    alone = [engine.call(in_process.run, [ask])[0][0].tokens for ask in seeded]
    assert tokens_of(together) == alone


def test_a_stop_token_inside_an_accepted_draft_is_the_last(drafting: Engine) -> None:
    whole, _ = plainly(drafting, asks(60))
    requests = [
        Ask(**{**vars(ask), "stop": (w.tokens[20 + i],)})
        for i, (ask, w) in enumerate(zip(asks(60), whole, strict=True))
    ]
    written, _ = drafting.call(in_process.run, requests)
    for ask, w, found in zip(requests, whole, written, strict=True):
        assert found.tokens == w.tokens[: w.tokens.index(ask.stop[0]) + 1]
        assert len(found.logprobs) == len(found.tokens)
        assert found.reason == "stop"


def test_a_request_ends_at_its_last_token_though_more_would_be_accepted(drafting: Engine) -> None:
    whole, _ = plainly(drafting, asks(60))
    requests = [Ask(**{**vars(ask), "max_tokens": 1 + i}) for i, ask in enumerate(asks(60))]
    written, _ = drafting.call(in_process.run, requests)
    for i, (w, found) in enumerate(zip(whole, written, strict=True)):
        assert found.tokens == w.tokens[: 1 + i]
        assert found.reason == "length"


def test_requests_that_fill_the_longest_length_end_there(drafting: Engine) -> None:
    prompt = (PROMPTS[0] * MAX_MODEL_LEN)[: MAX_MODEL_LEN - 40]
    requests = [Ask(prompt[i:], 40 + i, prompt_key=1, group_id=0) for i in range(4)]
    plain, _ = plainly(drafting, requests)
    written, _ = drafting.call(in_process.run, requests)
    assert tokens_of(written) == tokens_of(plain)
    assert [len(w.tokens) for w in written] == [40, 41, 42, 43]


def test_an_abort_between_draft_and_verification_leaves_the_others_alone_and_nothing_behind(
    drafting: Engine,
) -> None:
    plain, _ = plainly(drafting, asks(100))
    written, _ = drafting.call(in_process.run, asks(100), abort={3: [0, 5], 4: [11]})
    for place, (found, w) in enumerate(zip(written, plain, strict=True)):
        if place in (0, 5, 11):
            assert 0 < len(found.tokens) < 100
            assert found.tokens == w.tokens[: len(found.tokens)]
        else:
            assert found.tokens == w.tokens
    drafting.call(in_process.run, asks(10)[:1])
    unverified, rows, commands = drafting.call(in_process.left_behind)
    assert unverified <= 1
    assert rows <= 1
    assert commands == 0
