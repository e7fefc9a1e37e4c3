"""Whether an engine's verifier keeps the model's distribution, and the repair of one that does not.

A verifier accepts a draft token x with probability min(1, p(x)/q(x)) and otherwise draws from what
is left of p (Leviathan et al. 2023, arXiv 2211.17192).  Drafts of a store are certain, q = 1, so
whatever they are, tokens come out as the model would have drawn them.

vLLM's verifier on CPU without Triton (0.32, public issue 55005) does not do that above temperature
0: the function that spreads the sequences' temperatures, top_k and top_p over their draft positions
writes into a copy, and drafted positions are sampled at whatever temperature the memory held.
Log-probabilities are right, so nothing shows.

What counts is what the functions do, not a version: two checks, in some 50 ms, before anything is
drafted.  `_spreads` gives the spreading known numbers.  `_law` has the verifier decide on drafts
for a known model and compares what comes out, for each temperature and each draft, with the
probabilities.  A wrong spreading is replaced; if a check still fails, nobody may draft.

Where nothing is drafted the verifier has nothing to do, takes its time, and on CPU ends the engine
if a request asks for top_k alone; `skip_idle_verifier` has such iterations sampled like any other.
"""

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

log = logging.getLogger(__name__)

LOGITS = (0.0, -0.7, -1.2, -1.6)
"""Of the known model's four tokens, at every position."""
TEMPERATURES = (0.0, 1.0, 0.5, 1.0)
"""Of a sequence, by its number modulo four; 0 is greedy."""
TOP_K = (4, 4, 4, 2)
BONUS = 3
"""The token drawn for the position after the drafts."""
REPEATS = 512
"""Sequences for each of 4 samplings and 4 x 4 drafts of two tokens."""
LARGEST_DEVIATION = 5.0
"""Standard deviations from the expected count.  The draws are the same at every start, so a sound
verifier passes always or never; a temperature of 0.7 instead of 1 fails."""


def ensure_exact(device: torch.device) -> str:
    """Check this process's verifier, repair it if need be; answers what is wrong with it, or ""."""
    try:
        import vllm.v1.sample.rejection_sampler as verifier
    except ImportError as error:
        return f"vLLM has no verifier where it was expected: {error}"
    return repaired(verifier, device)


def repaired(verifier: Any, device: torch.device) -> str:
    """As `ensure_exact`, of a verifier: vLLM's module, or something like it."""
    if not (fault := fault_of(verifier, device)):
        return ""
    found = getattr(verifier, "expand_batch_to_tokens", None)
    verifier.expand_batch_to_tokens = spread
    if left := fault_of(verifier, device):
        verifier.expand_batch_to_tokens = found
        return left
    log.warning("vLLM's verifier was repaired (public issue 55005): %s", fault)
    return ""


class NothingDrafted:
    """In place of vLLM's `SpecDecodeMetadata` for a batch without drafts."""

    def __init__(self, logits_indices: torch.Tensor) -> None:
        self.logits_indices = logits_indices


def skip_idle_verifier(runner: Any) -> None:
    """Have a model runner sample batches without drafts as an engine without speculation does.

    Raises `AttributeError` if it is not built as this needs it.
    """
    prepare, sample = runner._calc_spec_decode_metadata, runner._sample

    def prepared(draft_tokens: NDArray[np.int32], ends: NDArray[np.int32]) -> Any:
        if draft_tokens.any():
            return prepare(draft_tokens, ends)
        return NothingDrafted(torch.from_numpy(ends - 1).to(runner.device))

    def sampled(logits: Any, drafts: Any) -> Any:
        return sample(logits, None if isinstance(drafts, NothingDrafted) else drafts)

    runner._calc_spec_decode_metadata, runner._sample = prepared, sampled


def spread(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Repeat x[i] for each draft position of sequence i: the repaired `expand_batch_to_tokens`.

    Parameters
    ----------
    x : (n,) a sampling parameter; values equal to `replace_from` become `replace_to`.
    cu_num_tokens : (n,) draft tokens of the sequences up to and with each.
    num_tokens : their sum.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).to(torch.int64)
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return replaced.repeat_interleave(counts, output_size=num_tokens)


def fault_of(verifier: Any, device: torch.device) -> str:
    """What a verifier does wrong; "" if nothing was found."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        try:
            return _spreads(verifier, device) or _law(verifier, device)
        except Exception as error:  # another vLLM: whatever it is, it was not verified
            return f"checking it failed: {type(error).__name__}: {error}"


def _spreads(verifier: Any, device: torch.device) -> str:
    counts = [2, 0, 1, 3]
    cumulated = torch.tensor(counts, device=device).cumsum(0).to(torch.int32)
    for dtype in (torch.float32, torch.int32):
        for values in ([7, 5, 0, 3], [0, 9, 4, 6], [2, 0, 8, 0]):
            # Divided, so that a detour through integers shows.
            x = torch.tensor(values, device=device).to(dtype)
            x = x / 8 if dtype.is_floating_point else x
            # A function that writes nothing must not find the answer in freed memory.
            rubbish = [torch.full((sum(counts),), -1, dtype=dtype, device=device) for _ in range(8)]
            del rubbish
            found = verifier.expand_batch_to_tokens(x, cumulated, sum(counts), 0, 1).tolist()
            expected = [
                value or 1 for value, n in zip(x.tolist(), counts, strict=True) for _ in range(n)
            ]
            if found != expected:
                return f"sampling parameters {expected} reach draft positions as {found}"
    return ""


def _law(verifier: Any, device: torch.device) -> str:
    """Two drafted tokens per sequence: what comes out against the model's probabilities."""
    rows = torch.arange(4 * 4 * 4 * REPEATS, device=device)
    kind, drafts = rows % 4, torch.stack((rows // 4 % 4, rows // 16 % 4), 1).to(torch.int32)
    found = _verified(verifier, kind, drafts)
    for number in range(4):
        probabilities = _probabilities(number, device)
        for first in range(4):
            drafted = (kind == number) & (drafts[:, 0] == first)
            if problem := _deviation(found[drafted, 0], probabilities):
                return f"{_name(number)}, token {first} drafted: {problem}"
            accepted = drafted & (found[:, 0] == first)
            if problem := _deviation(found[accepted, 1], probabilities):
                return f"{_name(number)}, after an accepted token {first}: {problem}"
    return _places(found, drafts)


def _verified(verifier: Any, kind: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """(n, 3) what comes out for `drafts`, (n, 2), under sampling number `kind`, (n,)."""
    n, device = len(kind), kind.device
    sampling = SimpleNamespace(
        all_greedy=False,
        all_random=False,
        temperature=torch.tensor(TEMPERATURES, device=device)[kind],
        top_k=torch.tensor(TOP_K, dtype=torch.int32, device=device)[kind],
        top_p=None,
        generators={},
    )
    cumulated = torch.arange(2, 2 * n + 1, 2, dtype=torch.int32, device=device)
    logits = torch.tensor(LOGITS, device=device).repeat(2 * n, 1)
    logits = verifier.apply_sampling_constraints(logits, cumulated, sampling)
    bonus = torch.full((n, 1), BONUS, dtype=torch.int32, device=device)
    out: torch.Tensor = verifier.rejection_sample(
        drafts.flatten(), [2] * n, 2, cumulated, None, logits, bonus, sampling
    )
    return out


def _probabilities(kind: int, device: torch.device) -> torch.Tensor:
    """(4,) of the known model under sampling number `kind`."""
    logits = torch.tensor(LOGITS, dtype=torch.float64, device=device)
    if TEMPERATURES[kind] == 0.0:
        return (logits == logits.max()).double()
    logits[TOP_K[kind] :] = float("-inf")  # they fall
    return (logits / TEMPERATURES[kind]).softmax(0)


def _deviation(tokens: torch.Tensor, probabilities: torch.Tensor) -> str:
    """How the tokens differ from what the probabilities explain; "" if they do not."""
    if len(tokens) == 0:
        return ""
    if not bool(((tokens >= 0) & (tokens < 4)).all()):
        return "a token is missing or is none of the model's"
    counts = torch.bincount(tokens.long(), minlength=4).double()
    expected = len(tokens) * probabilities
    # The 1 lets impossible and certain tokens, and few draws, be compared without a division by 0.
    deviation = (counts - expected).abs() / (expected * (1 - probabilities) + 1).sqrt()
    impossible = bool((counts[probabilities == 0] > 0).any())
    if impossible or float(deviation.max()) > LARGEST_DEVIATION:
        return f"tokens came {counts.int().tolist()} times instead of {expected.int().tolist()}"
    return ""


def _places(found: torch.Tensor, drafts: torch.Tensor) -> str:
    """The shape of the answer: nothing after a refused draft, the bonus after accepted ones."""
    first, both = found[:, 0] == drafts[:, 0], (found[:, :2] == drafts).all(1)
    if bool((found[~first, 1:] != -1).any()) or bool((found[first & ~both, 2] != -1).any()):
        return "tokens follow a refused draft"
    if bool((found[both, 2] != BONUS).any()):
        return "the token after accepted drafts is not the one that was drawn for it"
    return ""


def _name(kind: int) -> str:
    return f"at temperature {TEMPERATURES[kind]:g}" + (", top_k 2" if TOP_K[kind] < 4 else "")
