"""The page that a vLLM engine (or Ray, for it) shows to Prometheus, with the same names."""

from typing import Literal

from support.fake_engine import Engine

Style = Literal["vllm:", "vllm_", "ray_vllm_"]
BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
FILLERS = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
"""Histograms that nobody here reads, so that the page has the size of a real one."""


def page(engine: Engine, style: Style, model: str, blocks: int, block_size: int) -> str:
    """All of it."""
    labels = f'engine="0",model_name="{model}"'
    if style == "ray_vllm_":
        labels += ',WorkerId="f00",ReplicaId="r0"'
    lines: list[str] = []

    def family(name: str, kind: str, samples: dict[str, float]) -> None:
        lines.append(f"# HELP {style}{name} What it is.")
        lines.append(f"# TYPE {style}{name} {kind}")
        lines.extend(f"{style}{sample} {float(value)}" for sample, value in samples.items())

    def plain(name: str, kind: str, value: float) -> None:
        family(name, kind, {f"{name}{{{labels}}}": value})

    def histogram(name: str, count: float, total: float) -> None:
        family(
            name,
            "histogram",
            {f'{name}_bucket{{{labels},le="{le}.0"}}': count for le in BUCKETS}
            | {
                f'{name}_bucket{{{labels},le="+Inf"}}': count,
                f"{name}_count{{{labels}}}": count,
                f"{name}_sum{{{labels}}}": total,
            },
        )

    counters = engine.counters
    held = sum(len(s.prompt) + len(s.tokens) for s in engine.running)
    plain("num_requests_running", "gauge", len(engine.running))
    plain("num_requests_waiting", "gauge", len(engine.line))
    family(
        "num_requests_waiting_by_reason",
        "gauge",
        {f'num_requests_waiting_by_reason{{{labels},reason="capacity"}}': len(engine.line)},
    )
    plain("kv_cache_usage_perc", "gauge", min(1.0, held / (blocks * block_size)))
    plain("prefix_cache_queries_total", "counter", counters["prompt_tokens"])
    plain("prefix_cache_hits_total", "counter", 0)
    plain("num_preemptions_total", "counter", counters["preemptions"])
    plain("prompt_tokens_total", "counter", counters["prompt_tokens"])
    plain("generation_tokens_total", "counter", counters["generation_tokens"])
    count = int(counters["iterations"])
    histogram(
        "iteration_tokens_total", count, counters["prompt_tokens"] + counters["generation_tokens"]
    )
    family(
        "cache_config_info",
        "gauge",
        {
            f'cache_config_info{{block_size="{block_size}",cache_dtype="auto",engine="0",'
            f'num_gpu_blocks="{blocks}",sliding_window="None"}}': 1
        },
    )
    for name in FILLERS:
        histogram(name, count, count * 0.01)
    return "\n".join(lines) + "\n"
