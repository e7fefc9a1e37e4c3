"""Writes the fixtures of this folder: `python make_fixtures.py NAME`, NAME one of the functions.

Each in an environment with the trainer that it names; the versions are in README.md.  `slime`,
`roll` and `nemo_rl` are not in a package registry: those are made by hand after their code.
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
QUESTIONS = ["what is two and two", "name a prime above ten"]
ANSWERS = ["it is four", "four", "eleven is a prime I think", "thirteen", "seventeen maybe", "five"]


def verl() -> None:
    """verl's own writers: of the V1 trainers (with uid), and of the older ones (without)."""
    import numpy as np
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    inputs = [QUESTIONS[i // 3] for i in range(6)]
    scores = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    for step in (2, 10):
        keys = {"uid": [f"u{step}-{i // 3}_{i % 3}_0" for i in range(6)]}
        PPOTrainer._write_generations(
            inputs, ANSWERS, ["4"] * 6, scores, keys, str(HERE / "verl"), step
        )
    extra = {"acc": np.array([True, False] * 3), "pred": ["4"] * 6}
    mixed = [0, 3, 1, 4, 2, 5]  # the older trainers balance the batch before they write it
    RayPPOTrainer._write_generations(
        [inputs[i] for i in mixed],
        [ANSWERS[i] for i in mixed],
        ["4"] * 6,
        scores,
        extra,
        str(HERE / "verl_legacy"),
        1,
    )


def trl() -> None:
    """Two short GRPO runs of a tiny random model; a batch serves two steps."""
    import shutil
    import tempfile

    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = sorted({word for text in QUESTIONS + ANSWERS for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", "user:", *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = "{% for m in messages %}user: {{ m['content'] }} {% endfor %}"
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )

    def length(completions, **_):  # type: ignore[no-untyped-def]
        return [float(len(str(completion))) for completion in completions]

    def never(completions, **_):  # type: ignore[no-untyped-def]
        return [None for _ in completions]

    questions = [f"{QUESTIONS[0]} times {i}" for i in range(8)]
    for name, prompts in {
        "trl": questions,
        "trl_chat": [[{"role": "user", "content": question}] for question in questions],
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            trainer = GRPOTrainer(
                model=LlamaForCausalLM(config),
                reward_funcs=[length, never],
                train_dataset=Dataset.from_dict({"prompt": prompts}),
                processing_class=tokenizer,
                args=GRPOConfig(
                    output_dir=folder,
                    per_device_train_batch_size=4,
                    num_generations=2,
                    steps_per_generation=2,
                    max_completion_length=8,
                    max_steps=4,
                    logging_steps=1,
                    log_completions=True,
                    report_to=[],
                    use_cpu=True,
                    bf16=False,
                    seed=1,
                ),
            )
            trainer.train()
            shutil.copytree(Path(folder) / "completions", HERE / name, dirs_exist_ok=True)


def areal() -> None:
    """AReaL's own dump and session tracer, on made-up tensors and times."""
    import time
    from unittest import mock

    import torch
    from areal.infra.workflow_executor import WorkflowExecutor
    from areal.utils.perf_tracer import SessionTraceEvent as Event
    from areal.utils.perf_tracer import SessionTracer

    def tokens(prompt: int, answers: list[int], versions: list[int]):  # type: ignore[no-untyped-def]
        width = prompt + max(answers)
        mask = torch.tensor([[1] * (prompt + n) + [0] * (width - prompt - n) for n in answers])
        loss = mask.clone()
        loss[:, :prompt] = 0
        return {
            "input_ids": torch.arange(width).repeat(len(answers), 1),
            "attention_mask": mask,
            "loss_mask": loss,
            "rewards": torch.tensor([1.0, 0.0, 1.0][: len(answers)]),
            "versions": torch.tensor(versions),
        }

    tokenizer = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))
    executor = SimpleNamespace(
        _get_dump_dir=lambda _: str(HERE / "areal" / "rollout"), _get_tokenizer=lambda: tokenizer
    )
    for task, prompt, answers, versions in (
        (0, 5, [7, 3], [-1, 3, 4]),  # as AReaL's own workflows: -1 for the prompt
        (1, 6, [4], [3, 4]),
    ):
        asyncio.run(
            WorkflowExecutor._dump_trajectory(
                executor, tokens(prompt, answers, versions), task, False
            )
        )
    path = HERE / "areal" / "session_tracer" / "sessions-r0.jsonl"
    settings = SimpleNamespace(enabled=True, flush_threshold=1)
    now = 1_700_000_000.0
    with mock.patch.object(time, "time", lambda: now):  # noqa: PT008 - it moves on
        tracer = SessionTracer(settings, output_path=str(path), rank=0)
        for task, ends in ((0, [9.0, 4.0]), (1, [6.0])):
            tracer.register_task(task)
            for end in ends:
                now += 0.5
                session = tracer.register_session(task)
                begun = now
                for event, after in (
                    (Event.GENERATE_START, 0.25),
                    (Event.GENERATE_END, end / 2),
                    (Event.TOOLCALL_START, end / 2),
                    (Event.TOOLCALL_END, end / 2 + 1),
                    (Event.GENERATE_START, end / 2 + 1),
                    (Event.GENERATE_END, end),
                    (Event.FINALIZED, 10.0),
                ):
                    now = begun + after
                    payload = {"status": "accepted"} if event is Event.FINALIZED else {}
                    tracer.record_event(session, event, **payload)
                now = begun
        tracer.flush(force=True)


def prime_rl() -> None:
    """Episodes of verifiers, written as prime-rl's FileMonitor does."""
    import orjson
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.episode import (
        EnvInfo,
        GroupInfo,
        PolicySpan,
        TrainRunInfo,
        TrainWorkInfo,
        WireEpisode,
    )
    from verifiers.v1.state import State
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import AgentInfo, ModelCall, Reward, TimeSpan, Trace, TraceTask
    from verifiers.v1.types import SamplingConfig, Usage

    begun = 1_700_000_000.0

    def call(start: float, end: float, prompt: int, tokens: int, why: str, cached: int = 0):  # type: ignore[no-untyped-def]
        return ModelCall(
            model="m",
            sampling=SamplingConfig(max_tokens=64),
            endpoint="/inference/v1/generate",
            finish_reason=why,
            usage=Usage(
                prompt_tokens=prompt - cached,
                completion_tokens=tokens,
                cached_input_tokens=cached or None,
            ),
            time=TimeSpan(start=begun + start, end=begun + end),
        )

    one_turn = [call(0.0, 4.0, 20, 30, "stop")]
    cut = [call(0.5, 9.0, 20, 64, "length")]
    turns = [
        call(1.0, 2.0, 25, 10, "tool_calls"),
        call(3.5, 5.0, 50, 12, "tool_calls", cached=35),
        call(6.0, 8.0, 80, 9, "stop", cached=62),
    ]
    refused = ModelCall(error=vf.trace.Error(type="ProviderError", message="503"))
    for step, subset, group, task, calls, ok in (
        (0, "all", "g0", "a", one_turn, True),
        (0, "all", "g0", "a", cut, True),
        (0, "effective", "g0", "a", cut, True),
        (1, "all", "g1", "b", [refused, *turns], True),
        (1, "all", "g1", "b", [], False),
    ):
        data = WireTaskData(prompt=QUESTIONS[0])
        told = TraceTask(type="Math", data=data, key=task, hash=task * 4)
        trace = Trace[WireTaskData, State, WireAgentConfig](
            task=told,
            agent=AgentInfo(config=WireAgentConfig()),
            calls=calls,
            rewards={"right": Reward(score=1.0), "brief": Reward(score=0.5, weight=0.2)}
            if ok
            else {},
            ok=ok,
            is_completed=ok,
            stop_condition=None if ok else "sandbox_error",
        )
        episode = WireEpisode(
            env=EnvInfo(id="math", name="math"),
            task=told,
            group=GroupInfo(id=group),
            ok=ok,
            traces=[trace],
        )
        work = TrainWorkInfo(step=step, policy=PolicySpan(start=step, end=step + 1))
        episode.record_run(TrainRunInfo(id="run", work=work))
        path = HERE / "prime_rl" / "rollouts" / f"step_{step}" / "train" / subset / "traces.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
            file.write(orjson.dumps(episode.to_record(), default=str, option=options))


def slime() -> None:
    """By hand: a finished sample of two turns, a cut one, one resumed after an abort."""
    import torch

    def events(*spans: tuple[float, float, int, int, str]) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for i, (start, end, cap, tokens, why) in enumerate(spans):
            shared = {"name": "sglang_generate", "span_id": str(i)}
            attrs = {"completion_tokens": tokens, "finish_reason": why, "queue_time": 0.1}
            found += [
                {"type": "span_start", "ts": start, "attrs": {"max_new_tokens": cap}, **shared},
                {"type": "span_end", "ts": end, "attrs": attrs, **shared},
            ]
        return found

    def sample(i: int, tokens: int, status: str, **rest: object) -> dict[str, object]:
        whole = {"tokens": list(range(4 + tokens)), "response_length": tokens, "status": status}
        told = {"group_index": i // 2, "index": i, "prompt": QUESTIONS[i // 2], "reward": 1.0}
        return {**told, **whole, "loss_mask": None, "multimodal_inputs": None, **rest}

    versions = {"weight_versions": ["3", "4"]}
    two_turns = {"events": events((100.0, 101.0, 32, 5, "stop"), (103.0, 104.0, 32, 6, "stop"))}
    resumed = {"events": events((100.0, 101.0, 32, 9, "abort"), (110.0, 112.0, 23, 8, "stop"))}
    cut = {"events": events((100.0, 105.0, 32, 32, "length"))}
    samples = [
        sample(0, 15, "completed", trace=two_turns, loss_mask=[1] * 5 + [0] * 4 + [1] * 6),
        sample(1, 32, "truncated", trace=cut, **versions),
        sample(2, 17, "completed", trace=resumed, **versions),
        sample(3, 3, "aborted", reward=None, loss_mask=[0, 1, 1]),
    ]
    (HERE / "slime").mkdir(exist_ok=True)
    torch.save({"rollout_id": 7, "samples": samples}, HERE / "slime" / "7.pt")
    torch.save({"rollout_id": 7, "samples": samples[:1]}, HERE / "slime" / "eval_7.pt")


def roll() -> None:
    """By hand: one line of columns per step."""
    (HERE / "roll").mkdir(exist_ok=True)
    for step, meta in ((0, {}), (1, {"generation_config": {"max_new_tokens": 5}})):
        columns = {
            "id": ["q0", "q1"] * 3,
            "domain": ["math"] * 6,
            "prompt": QUESTIONS * 3,
            "responses": ANSWERS,
            "scores": [1.0, 1.0, 0.0, 1.0, 0.0, 0.0],
            "sampling_params": [json.dumps(meta)] * 6,
            "global_step": [step] * 6,
        }
        path = HERE / "roll" / f"rollout_dump_data.step_{step}.jsonl"
        path.write_text(json.dumps(columns) + "\n")


def nemo_rl() -> None:
    """By hand: two groups of two; the last sample takes two turns."""
    (HERE / "nemo_rl").mkdir(exist_ok=True)
    masks = [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 0], [0, 0, 1, 0, 1, 1]]
    lines = []
    for i, (mask, length) in enumerate(zip(masks, (5, 6, 5, 6), strict=True)):
        ids = [9, 9, 9, 20 + i, 21, 0] if i < 2 else [8, 8, 20, 21, 22, 23]
        sample = {
            "content": ["text"],
            "rewards": [float(i % 2)],
            "input_lengths": [length],
            "token_ids": [ids],
            "token_loss_mask": [mask],
            "sample_loss_mask": [1.0],
            "advantages": [[float("nan")] * 6],
            "idx": i,
        }
        lines.append(json.dumps(sample))
    (HERE / "nemo_rl" / "train_data_step3.jsonl").write_text("\n".join(lines) + "\n")


def tokenizer() -> None:
    """A tokenizer whose tokens are the words, so that lengths can be checked by eye."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (HERE / "tokenizer").mkdir(exist_ok=True)
    inner.save(str(HERE / "tokenizer" / "tokenizer.json"))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
