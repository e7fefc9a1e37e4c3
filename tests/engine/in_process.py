"""One vLLM engine in a process of its own, stepped by hand: it shows what a fleet does not.

The functions below `start` run in that process, through `Engine.call`.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Ask:
    """A request."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[int, ...] = ()
    draft_tokens: int = -1
    prompt_key: int = 0
    group_id: int = -1


@dataclass
class Written:
    """What came of it."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: str = ""
    drafted: list[int] = field(default_factory=list)
    """Tokens drafted for it in each iteration that it was in."""


class Engine:
    """The process with the engine."""

    def __init__(self, model: Path, draft_tokens: int, **options: Any) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.fault: str = self.call(start, str(model), draft_tokens, options)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The answer of one of the functions below."""
        return self._pool.submit(function, *arguments, **options).result()

    def close(self) -> None:
        """End it."""
        self._pool.shutdown()


llm: Any = None
broken: Any = None
"""vLLM's own spreading of sampling parameters, before the repair."""
put_aside = 0
numbers = iter(range(1 << 30))


def start(model: str, draft_tokens: int, options: dict[str, Any]) -> str:
    """The engine as a replica has it; answers why it must not draft."""
    global llm, broken
    os.environ.update(ENVIRONMENT)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from steersman.mechanisms.ray_vllm.actor import EXTENSION
    from steersman.mechanisms.ray_vllm.options import EngineOptions

    asked = {"dtype": "float32", "max_model_len": 2048, "max_num_seqs": 64, **options}
    engine = EngineOptions(draft_tokens=draft_tokens, **asked)
    arguments = engine.engine_args(model, on_gpu=False)
    llm = LLMEngine.from_engine_args(EngineArgs(worker_extension_cls=EXTENSION, **arguments))
    import vllm.v1.sample.rejection_sampler as verifier

    broken = verifier.expand_batch_to_tokens
    scheduler = llm.engine_core.engine_core.scheduler
    preempt = scheduler._preempt_request

    def counting(*given: Any, **more: Any) -> Any:
        global put_aside
        put_aside += 1
        return preempt(*given, **more)

    scheduler._preempt_request = counting
    assert llm.collective_rpc("steersman_prepare") == [""]
    if not draft_tokens:
        return ""
    with tempfile.NamedTemporaryFile() as counters:
        (fault,) = llm.collective_rpc("steersman_arm", args=(counters.name,))
    return str(fault)


def runner() -> Any:
    """vLLM's model runner."""
    return llm.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def verifier_faults() -> tuple[str, str]:
    """Of vLLM's verifier as it was, and as it is now."""
    import vllm.v1.sample.rejection_sampler as verifier

    from steersman.mechanisms.ray_vllm.sampling_repair import fault_of

    repaired = verifier.expand_batch_to_tokens
    now = fault_of(verifier, runner().device)
    verifier.expand_batch_to_tokens = broken
    before = fault_of(verifier, runner().device)
    verifier.expand_batch_to_tokens = repaired
    return before, now


def bias(how: str) -> None:
    """Undo the repair, or have refused drafts drawn again; "" makes all good."""
    import vllm.v1.sample.rejection_sampler as verifier

    from steersman.mechanisms.ray_vllm.sampling_repair import spread

    verifier.expand_batch_to_tokens = broken if how == "not repaired" else spread
    if not hasattr(verifier, "sound_recovery"):
        verifier.sound_recovery = verifier.sample_recovered_tokens
    verifier.sample_recovered_tokens = (
        _drawn_again if how == "refused drafts are drawn again" else verifier.sound_recovery
    )


def _drawn_again(longest: int, counts: Any, cumulated: Any, drafts: Any, *rest: Any) -> Any:
    import torch

    (probabilities,) = [r for r in rest if isinstance(r, torch.Tensor)]
    return torch.multinomial(probabilities, 1)[:, 0].to(drafts.dtype)


class Scripted:
    """A drafter with a script: by group and last token, the tokens to draft."""

    def __init__(self, script: NDArray[np.int32]) -> None:
        """`script` is (groups, vocabulary, tokens)."""
        self.script = script

    def propose(
        self, token_ids: Any, lengths: Any, prompt_keys: Any, group_ids: Any, wanted: Any
    ) -> Any:
        from steersman.mechanisms.drafting.drafter import Drafts

        rows = len(lengths)
        tokens = self.script[group_ids, token_ids[np.arange(rows), lengths - 1]]
        counts = np.minimum(wanted, tokens.shape[1])
        return Drafts(tokens, counts, (counts > 0).astype(np.uint8), np.zeros(rows, np.int64))

    def verified(self, *arguments: Any) -> None:
        """Learns nothing."""


def draft_from(script: NDArray[np.int32] | None, store: str = "") -> None:
    """Draft from a script, from a store, or from the requests alone."""
    proposer = runner().drafter
    if script is not None:
        proposer._drafter = Scripted(script)
    elif store:
        (problem,) = llm.collective_rpc("steersman_attach", args=(store,))
        assert problem == ""
    else:
        proposer._drafter = proposer._drafter_of(None)


def instruct(default: int) -> None:
    """Tokens to draft by default."""
    llm.collective_rpc("steersman_draft", args=(default, {}))


def run(
    asks: Sequence[Ask],
    *,
    switch: dict[int, dict[int, int]] | None = None,
    abort: dict[int, list[int]] | None = None,
) -> tuple[list[Written], int]:
    """Run the requests together; answers what they wrote, and the iterations that took.

    Before iteration `i`, `switch[i]` gives requests (by place) new numbers of tokens to draft, and
    those in `abort[i]` are aborted.
    """
    names = [f"r{next(numbers)}" for _ in asks]
    written = {name: Written() for name in names}
    for name, ask in zip(names, asks, strict=True):
        _add(name, ask)
    commanded: dict[str, int] = {}
    iterations = 0
    with _watched(written):
        while llm.has_unfinished_requests():
            if switch and (changes := switch.get(iterations)):
                commanded |= {names[place]: k for place, k in changes.items()}
                default = runner().drafter._default
                llm.collective_rpc("steersman_draft", args=(default, commanded))
            if abort and (gone := abort.get(iterations)):
                llm.abort_request([names[place] for place in gone])
            for output in llm.step():
                (completion,) = output.outputs
                request = written[output.request_id]
                request.tokens += completion.token_ids
                request.logprobs += completion.logprobs.logprobs
                request.reason = completion.finish_reason or ""
            iterations += 1
    return [written[name] for name in names], iterations


def _add(name: str, ask: Ask) -> None:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    from steersman.mechanisms.fleet import AttemptRequest, Sampling
    from steersman.mechanisms.ray_vllm.draft_control import extra_args

    said = AttemptRequest(
        name,
        ask.prompt,
        ask.max_tokens,
        Sampling(),
        prompt_key=ask.prompt_key,
        group_id=ask.group_id,
        draft_tokens=ask.draft_tokens,
    )
    sampling = SamplingParams(
        temperature=ask.temperature,
        top_p=ask.top_p,
        top_k=ask.top_k,
        seed=ask.seed,
        stop_token_ids=list(ask.stop),
        ignore_eos=True,  # the model's own stop token; those asked for count nevertheless
        max_tokens=ask.max_tokens,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra_args(said),
    )
    llm.add_request(name, TokensPrompt(prompt_token_ids=ask.prompt), sampling)


class _watched:
    """Notes what the proposer gives each request."""

    def __init__(self, written: dict[str, Written]) -> None:
        self._written = written

    def __enter__(self) -> None:
        self._proposer = getattr(runner(), "drafter", None)
        if self._proposer is None:
            return
        propose = self._proposer.propose

        def watched(*arguments: Any, **options: Any) -> Any:
            drafts = propose(*arguments, **options)
            for name, draft in zip(runner().input_batch.req_ids, drafts, strict=True):
                own = runner().requests[name].sampling_params.extra_args["steersman"]["attempt"]
                if own in self._written:
                    self._written[own].drafted.append(len(draft))
            return drafts

        self._proposer.propose = watched

    def __exit__(self, *error: object) -> None:
        if self._proposer is not None:
            del self._proposer.propose


def counted() -> dict[str, list[int]]:
    """Drafts verified, tokens drafted and accepted, by class."""
    classes: dict[str, list[int]] = runner().drafter.counters.by_class()
    return classes


def left_behind() -> tuple[int, int, int]:
    """Unverified drafts, rows and commands that the proposer holds."""
    proposer = runner().drafter
    return len(proposer._unverified), len(proposer._prompt_keys), len(proposer._commanded)


def preemptions() -> int:
    """Requests put aside for lack of memory, since the start."""
    return put_aside


def reload(path: str) -> None:
    """Load other weights."""
    llm.collective_rpc("steersman_load", args=(path,))
    llm.reset_prefix_cache()


def score(token_ids: list[int]) -> list[float]:
    """log p(token_ids[i] | token_ids[:i]) for i = 1.. ."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    sampling.detokenize = False
    llm.add_request(f"s{next(numbers)}", TokensPrompt(prompt_token_ids=token_ids), sampling)
    found: list[Any] = []
    while llm.has_unfinished_requests():
        for output in llm.step():
            found = output.prompt_logprobs or found
    return [e[token].logprob for e, token in zip(found[1:], token_ids[1:], strict=True)]
