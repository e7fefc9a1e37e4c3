"""The drafts of one engine: vLLM's `custom_class` proposer around a `Drafter`.

vLLM asks once per iteration, after the sampled tokens are in its batch and before the next one is
scheduled, and verifies next time what it was given.  It passes no names of requests, so the
proposer looks into the model runner's batch (not a public interface; `SteersmanExtension` hands it
over).  From there it also learns what became of its drafts: the scheduler may have cut a draft, or
put its request aside, so what counts is what stands in the batch as scheduled.

How many tokens to draft for a row is, in this order: what a command said for its request, what the
request said when it was started, the engine's default (0 until told).  Whatever it is, nothing is
drafted beyond the request's last token, since the verifier adds one of its own.

Nothing is drafted before `arm`, which is called only for a verifier that was found to be exact.
The state is bounded: it is one batch's, and drafts not verified yet, whose requests vLLM knows.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.observation import AS_REPLICA
from steersman.mechanisms.drafting.drafter import Drafter
from steersman.mechanisms.drafting.store import DraftStore
from steersman.mechanisms.ray_vllm.draft_control import EXTRA
from steersman.mechanisms.ray_vllm.draft_counters import NO_SLOT, DraftCounters

Ints = NDArray[np.int64]


class StoreProposer:
    """What vLLM makes of `speculative_config={"method": "custom_class", "model": <this>}`."""

    def __init__(self, vllm_config: Any) -> None:
        self.max_draft_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self.counters = DraftCounters.private(self.max_draft_tokens)
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self._vocabulary: int = vllm_config.model_config.get_vocab_size()
        self._runner: Any = None
        self._armed = False
        self._drafter = self._drafter_of(None)
        self._default = 0
        self._commanded: dict[str, int] = {}
        self._unverified: dict[str, tuple[int, int]] = {}
        """By request, class and ticket of the draft that waits to be verified."""
        self._names: list[str] | None = None
        """Requests that the next six are about; None: to be read again."""
        self._prompt_keys = self._group_ids = self._wanted = self._ends = np.zeros(0, np.int64)
        self._slots: list[int] = []
        self._silent = True
        """Nothing is to be drafted for any of them."""

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """vLLM calls this on CPU; there is no model to load."""

    def watch(self, runner: Any) -> None:
        """Look into this model runner's batch; before the first request, whether we draft or not.

        While a request is so near the longest length that drafts of the full size would not fit,
        vLLM asks no proposer but drafts zeros, for all requests and in full.  Ours always fit, so
        that must never happen.
        """
        runner.effective_drafter_max_model_len = self._max_model_len + self.max_draft_tokens + 1
        self._runner = runner

    def arm(self) -> None:
        """Draft from now on, if told to."""
        self._armed = True

    def attach(self, store: DraftStore) -> None:
        """Draft from this store too."""
        self._drafter = self._drafter_of(store)

    def _drafter_of(self, store: DraftStore | None) -> Drafter:
        return Drafter(store, self.max_draft_tokens, vocabulary_size=self._vocabulary)

    def instruct(self, default: int, commanded: Mapping[str, int]) -> None:
        """How many tokens to draft: by default, and by attempt where it was commanded."""
        self._default, self._commanded = default, dict(commanded)
        self._names = None

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for each row of the batch.

        Parameters
        ----------
        sampled_token_ids : of each row the tokens that this iteration brought; none while its
            prompt is being read.
        num_tokens_no_spec : of each row the length of its sequence, with those.
        token_ids_cpu : (rows, longest) the sequences.
        """
        rows = len(sampled_token_ids)
        if not self._armed or not rows:
            return [[] for _ in range(rows)]
        started_ns = time.perf_counter_ns()
        self._read_batch()
        if self._unverified:
            self._learn(sampled_token_ids)
        elif self._silent:
            return [[] for _ in range(rows)]
        proposed = self._propose(sampled_token_ids, num_tokens_no_spec[:rows], token_ids_cpu[:rows])
        self.counters.spent += 1, time.perf_counter_ns() - started_ns
        return proposed

    def _propose(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: NDArray[np.int32],
        token_ids: NDArray[np.int32],
    ) -> list[list[int]]:
        proposed: list[list[int]] = [[] for _ in sampled]
        wanted = np.minimum(self._wanted, self._ends - lengths - 1)
        wanted[[not tokens for tokens in sampled]] = 0
        asked = wanted > 0
        if not asked.any():
            return proposed
        self.counters.asked += (wanted > np.arange(self.max_draft_tokens)[:, None]).sum(axis=1)
        drafts = self._drafter.propose(
            token_ids,
            lengths.astype(np.int64),
            self._prompt_keys,
            self._group_ids,
            np.where(asked, wanted, 0),
        )
        names = self._runner.input_batch.req_ids
        for row in np.flatnonzero(drafts.counts).tolist():
            proposed[row] = drafts.tokens[row, : drafts.counts[row]].tolist()
            self._unverified[names[row]] = int(drafts.classes[row]), int(drafts.tickets[row])
        return proposed

    def _read_batch(self) -> None:
        """What is known of the rows; the batch is the same in most iterations."""
        batch = self._runner.input_batch
        if batch.req_ids == self._names:
            return
        self._names = list(batch.req_ids)
        said = [self._runner.requests[name].sampling_params for name in self._names]
        own = [((p.extra_args if p is not None else None) or {}).get(EXTRA, {}) for p in said]
        self._prompt_keys = _column([o.get("prompt_key", 0) for o in own])
        self._group_ids = _column([o.get("group_id", -1) for o in own])
        self._slots = [o.get("slot", NO_SLOT) for o in own]
        self._wanted = _column([self._tokens_of(o) for o in own])
        self._silent = not (self._wanted > 0).any()
        prompts = batch.num_prompt_tokens[: len(said)].tolist()
        limits = [(p.max_tokens if p is not None else None) or self._max_model_len for p in said]
        self._ends = np.minimum(
            _column([n + limit for n, limit in zip(prompts, limits, strict=True)]),
            self._max_model_len,
        )

    def _tokens_of(self, own: Mapping[str, Any]) -> int:
        tokens = self._commanded.get(own.get("attempt", ""), own.get("draft_tokens", AS_REPLICA))
        return min(self._default if tokens == AS_REPLICA else tokens, self.max_draft_tokens)

    def _learn(self, sampled: Sequence[Sequence[int]]) -> None:
        """Count what became of earlier drafts."""
        batch, known = self._runner.input_batch, self._runner.requests
        waiting: dict[str, tuple[int, int]] = {}
        verified = []
        for name, origin in self._unverified.items():
            row = batch.req_id_to_index.get(name)
            if row is None:
                # Put aside (its draft may be verified when it comes back), or gone.
                if name in known:
                    waiting[name] = origin
            elif (drafted := len(batch.spec_token_ids[row])) and sampled[row]:
                verified.append((*origin, self._slots[row], drafted, len(sampled[row]) - 1))
        self._unverified = waiting
        if verified:
            classes, tickets, _, drafted_tokens, accepted = np.array(verified, dtype=np.int64).T
            self._drafter.verified(classes.astype(np.uint8), drafted_tokens, accepted, tickets)
            for source, _, slot, drafted, kept in verified:
                self.counters.add(source, slot, drafted, kept)


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
