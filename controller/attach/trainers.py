"""Which trainers can be attached, where, and what then works: one table for all who ask.

`steersman attach` reads it, the README's table is made from it, and the tests of the attachments
look for its hooks in the trainers' own sources.  What a verdict says was read in the source of the
version named, and shown by the tests named in the README.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from steersman.estimators.errors import UnknownNameError


class Ability(StrEnum):
    """What a controller may do for a trainer."""

    PLACE = "place"
    """Choose the engine of each sample."""
    ADMIT = "admit"
    """Hold samples back until an engine has room for them."""
    MIGRATE = "migrate"
    """Move a running sample to another engine without losing what it wrote."""
    DEFER = "defer"
    """Park a sample for a later step."""
    SPECULATE = "speculate"
    """Set how many tokens are drafted."""
    PROMPTS = "prompt value"
    """Choose prompts, and how many samples of each, by what they teach."""


class Works(StrEnum):
    """A verdict in one word."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one ability works, and why not wholly."""

    works: Works
    why: str = ""
    """One clause for a person; empty only where it simply works."""


class Link(StrEnum):
    """Where a trainer is attached."""

    GATEWAY = "gateway"
    """Over HTTP: its address of the engines becomes the gateway's."""
    PATHS = "gateway, a path per engine"
    """As well, and it speaks to each engine at `/engines/NAME`."""
    PORTS = "gateway, a port per engine"
    """It takes hosts and ports only (`gateway.shadow_ports`)."""
    INSIDE = "inside it"
    """Its engines are Ray actors: a class of ours is loaded into it."""
    NOWHERE = "nowhere"


class Token(StrEnum):
    """What a trainer's client can present."""

    NEVER = "none"
    """It sends no token: the gateway must ask for none (loopback, or --insecure)."""
    ONE = "one for everything"
    """It has one key for requests and control: it must be the gateway's control token."""


@dataclass(frozen=True, slots=True)
class Hook:
    """Text of a trainer's source by which the attachment holds."""

    path: str
    """Of the file, below the trainer's top package."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """One trainer."""

    name: str
    title: str
    package: str
    """Name of the distribution; so is the next one, of its top module."""
    module: str
    tested: str
    """Version whose source the attachment was made for and tested against."""
    least: str = ""
    """Oldest version that has the hooks; empty: not known."""
    on_registry: bool = True
    """False: it is installed from its repository, and a package of that name may be another one."""
    python: str = ""
    """Oldest Python it runs on; empty: as old as ours."""
    link: Link
    how: str
    """What to set, in one sentence with the exact names."""
    example: str = ""
    """File below `examples/`."""
    hooks: tuple[Hook, ...] = ()
    session: str = ""
    """Header by which it names a conversation; empty: it sends none."""
    token: Token = Token.NEVER
    routes: tuple[str, ...] = ()
    """POST routes that its engines must have for its weights and pauses."""
    extension: str = ""
    """Class that its engines' workers must be extended by, to take its weights."""
    works: Mapping[Ability, Verdict] = field(default_factory=dict)
    normaliser: str = ""
    """What it divides advantages by unless told otherwise, and so what `normaliser` must be."""
    cannot: str = ""
    """What is not possible without a patch of it."""

    @property
    def over_http(self) -> bool:
        """Whether it is attached through a gateway."""
        return self.link in (Link.GATEWAY, Link.PATHS, Link.PORTS)


YES = Verdict(Works.YES)
DRAFTS = Verdict(Works.NO, "engines' drafts cannot be steered over HTTP")
DRAFTS_INSIDE = Verdict(Works.NO, "its engines are its own: drafts are set when they start")
WAITS = Verdict(
    Works.PARTLY, "gateway.may_defer=true parks requests, which stay open: only where it runs ahead"
)
TOGETHER = Verdict(Works.NO, "it waits for all samples of a prompt")
AT_RANDOM = Verdict(Works.NO, "its data loader draws at random; its own filters drop afterwards")


def _over_http(prompts: Verdict, **others: Verdict) -> dict[Ability, Verdict]:
    """What a gateway can do for whoever sends requests through it."""
    named = {Ability[name.upper()]: verdict for name, verdict in others.items()}
    return {
        Ability.PLACE: YES,
        Ability.ADMIT: YES,
        Ability.MIGRATE: YES,
        Ability.DEFER: WAITS,
        Ability.SPECULATE: DRAFTS,
        Ability.PROMPTS: prompts,
        **named,
    }


VLLM_ROUTES = (
    "/pause",
    "/resume",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
)
"""vLLM's own, there with VLLM_SERVER_DEV_MODE=1."""

VERL = Trainer(
    name="verl",
    title="verl",
    package="verl",
    module="verl",
    tested="0.9.1",
    least="0.9.1",
    link=Link.INSIDE,
    how=(
        "`actor_rollout_ref.rollout.router_config_path` names a file with our `router_class`, and "
        "`+actor_rollout_ref.rollout.agent.agent_loop_manager_class` our client"
    ),
    example="attach_verl.yaml",
    hooks=(
        Hook("workers/rollout/router.py", "def get_router_handle"),
        Hook("workers/rollout/router.py", "require_acquire_fields"),
        Hook("workers/rollout/llm_server.py", "class LLMServerClient"),
    ),
    works={
        Ability.PLACE: YES,
        Ability.ADMIT: YES,
        Ability.MIGRATE: Verdict(Works.YES, "with our client, which owns the engines' request ids"),
        Ability.DEFER: TOGETHER,
        Ability.SPECULATE: DRAFTS_INSIDE,
        Ability.PROMPTS: Verdict(Works.YES, "by `__rollout_n__`, a custom dataset and sampler"),
    },
    normaliser="std (`algorithm.norm_adv_by_std_in_grpo`, on by default)",
    cannot="the plain client of its synchronous mode takes an aborted sample for finished",
)

TRL = Trainer(
    name="trl",
    title="TRL",
    package="trl",
    module="trl",
    tested="1.16.0",
    least="1.16",
    link=Link.GATEWAY,
    how=(
        "`vllm_server_base_url` is the gateway (GRPO in server mode), or our `rollout_worker` and "
        "`weight_transfer` go into `AsyncGRPOTrainer`"
    ),
    example="attach_trl.py",
    hooks=(
        Hook("generation/vllm_client.py", "class VLLMClient"),
        Hook("experimental/async_grpo/async_grpo_trainer.py", "rollout_worker"),
        Hook("experimental/async_grpo/async_grpo_trainer.py", "weight_transfer"),
    ),
    routes=VLLM_ROUTES,
    works=_over_http(
        Verdict(Works.YES, "by our rollout worker, or `RepeatedPrompts` as its sampler")
    ),
    normaliser="std (`scale_rewards`, on by default)",
    cannot="a GRPO step waits for all of its samples: nothing can be deferred in server mode",
)

SKYRL = Trainer(
    name="skyrl",
    title="SkyRL",
    package="skyrl",
    module="skyrl",
    tested="0.4.0",
    least="0.4.0",
    python="3.12",
    link=Link.PATHS,
    how=(
        "`trainer.override_entrypoint=steersman.controller.sidecar.skyrl` puts a gateway before "
        "the engines that it starts; for engines started elsewhere, "
        "`generator.inference_engine.external_proxy_url` is the gateway and "
        "`external_server_urls` its `/engines/NAME`"
    ),
    example="attach_skyrl.sh",
    hooks=(
        Hook("train/config/config.py", "external_proxy_url:"),
        Hook("train/config/config.py", "external_server_urls:"),
        Hook("train/entrypoints/main_base.py", "trainer.override_entrypoint="),
        Hook("train/entrypoints/main_base.py", "def get_inference_client"),
        Hook(
            "backends/skyrl_train/inference_servers/remote_inference_client.py",
            'headers["X-Session-ID"]',
        ),
    ),
    session="X-Session-ID",
    routes=(*VLLM_ROUTES, "/reset_prefix_cache", "/fetch_weights"),
    extension="NewInferenceWorkerWrap",
    works=_over_http(
        AT_RANDOM,
        migrate=Verdict(
            Works.PARTLY,
            "all but what comes over /skyrl/v1/generate (routed experts, sample support), which "
            "stays where it was placed",
        ),
    ),
    normaliser="std (`trainer.algorithm.grpo_norm_by_std`, on by default)",
    cannot="a token: its client sends none; a choice of prompts",
)

PRIME_RL = Trainer(
    name="prime-rl",
    title="prime-rl",
    package="prime-rl",
    module="prime_rl",
    tested="559b447 (2026-08-21), with verifiers 0.4.0",
    on_registry=False,
    python="3.12",
    link=Link.PATHS,
    how=(
        "`[orchestrator.model.client]` `base_url` is the gateway's `/v1`, `admin_base_url` its "
        "`/engines/NAME`; no router of its own (`inference.router`)"
    ),
    example="attach_prime_rl.toml",
    hooks=(
        Hook("utils/client.py", "admin_base_url"),
        Hook("utils/client.py", "/init_broadcaster"),
        Hook("utils/client.py", '"mode": "keep"'),
    ),
    session="X-Session-ID",
    token=Token.ONE,
    routes=("/pause", "/resume", "/update_weights", "/init_broadcaster", "/load_lora_adapter"),
    extension="prime_rl.inference.vllm.worker",
    works=_over_http(
        Verdict(Works.NO, "its samplers and gates are a closed list; its own difficulty pools work")
    ),
    normaliser="none (rewards minus their mean): set normaliser=none",
    cannot=(
        "a choice of prompts; its own concurrency control stays on beside ours; engines of vLLM "
        "0.32, whose log-probabilities its client (renderers 0.1.12) does not read, gateway or not"
    ),
)

AREAL = Trainer(
    name="areal",
    title="AReaL",
    package="areal",
    module="areal",
    tested="1.0.4",
    least="1.0",
    link=Link.PORTS,
    how=(
        "`AREAL_LLM_SERVER_ADDRS` lists the gateway's ports, one per engine (SPMD mode); with one "
        "controller, `steersman.controller.sidecar.areal.install(addresses)` before the trainer is "
        "made"
    ),
    example="attach_areal.py",
    hooks=(
        Hook("infra/remote_inf_engine.py", "AREAL_LLM_SERVER_ADDRS"),
        Hook("infra/controller/rollout_controller.py", "server_infos"),
        Hook("engine/vllm_remote.py", "/areal_pause_generation"),
        Hook("engine/vllm_remote.py", "return_tokens_as_token_ids"),
    ),
    routes=("/areal_pause_generation", "/areal_continue_generation", "/areal_update_weights"),
    extension="areal.engine.vllm_ext.vllm_worker_extension",
    works=_over_http(
        AT_RANDOM,
        defer=Verdict(Works.NO, "its pauses end every open request: nothing outlives a step"),
    ),
    normaliser="as configured (`actor.reward_norm`, `actor.adv_norm`): set normaliser accordingly",
    cannot=(
        "a token: its client sends none; conversations are known by their prompts only, since it "
        "sends no session header"
    ),
)

NEMO_RL = Trainer(
    name="nemo-rl",
    title="NeMo-RL",
    package="nemo-rl",
    module="nemo_rl",
    tested="7ea279a (2026-08-22)",
    on_registry=False,
    python="3.13",
    link=Link.INSIDE,
    how=(
        "`async_rl.sampler: {name: custom, target: attach_nemo_rl:in_order, "
        "max_lookahead_versions: 1}` loads the file, which chooses the shard of each sample"
    ),
    example="attach_nemo_rl.py",
    hooks=(
        Hook("algorithms/async_utils/staleness_sampler.py", "class CustomSamplerConfig"),
        Hook("algorithms/async_utils/staleness_sampler.py", "class InOrderSampler"),
        Hook("models/generation/vllm/vllm_generation.py", "self.fleet_selector.next_shard()"),
        Hook("models/generation/vllm/vllm_generation.py", "self.fleet_selector.acquire("),
    ),
    works={
        Ability.PLACE: Verdict(
            Works.PARTLY,
            "by the work in flight on each shard: its hook is told nothing of the sample",
        ),
        Ability.ADMIT: Verdict(Works.NO, "its hook must answer at once"),
        Ability.MIGRATE: Verdict(Works.NO, "its workers cannot abort one request"),
        Ability.DEFER: TOGETHER,
        Ability.SPECULATE: DRAFTS_INSIDE,
        Ability.PROMPTS: AT_RANDOM,
    },
    normaliser="std of the other samples (`grpo.normalize_rewards`, on by default)",
    cannot=(
        "a gateway before NeMo-Gym: its servers have neither /v1/models nor /health, so no outside "
        "router can tell what they are"
    ),
)

ROLL = Trainer(
    name="roll",
    title="ROLL",
    package="roll",
    module="roll",
    tested="8eb27cc (2026-08-19)",
    on_registry=False,
    link=Link.INSIDE,
    how=(
        "`user_defined_rollout_loop_cls: steersman.controller.sidecar.roll.PromptValueLoop` (RLVR "
        "pipeline)"
    ),
    example="attach_roll.yaml",
    hooks=(
        Hook("distributed/scheduler/user_defined_rollout_loop.py", "class UserDefinedRolloutLoop"),
        Hook("distributed/scheduler/generate_scheduler.py", "udrl.process_new_prompt"),
        Hook(
            "distributed/scheduler/generate_scheduler.py", "self.dataset[next(self.dataset_iter)]"
        ),
        Hook("distributed/scheduler/generate_scheduler.py", "async def compute_rewards("),
    ),
    works={
        Ability.PLACE: Verdict(Works.NO, "its routers are a closed list"),
        Ability.ADMIT: Verdict(Works.NO, "its routers are a closed list"),
        Ability.MIGRATE: Verdict(
            Works.NO, "its call that aborts one prompt's requests is never awaited"
        ),
        Ability.DEFER: TOGETHER,
        Ability.SPECULATE: DRAFTS_INSIDE,
        Ability.PROMPTS: Verdict(Works.YES, "which prompt comes next; its group size is fixed"),
    },
    normaliser="as configured (`norm_std_type`): set normaliser accordingly",
    cannot="another router (`router_args.router_name` is a closed list); an abort of one request",
)

OPENRLHF = Trainer(
    name="openrlhf",
    title="OpenRLHF",
    package="openrlhf",
    module="openrlhf",
    tested="0.11.2",
    least="0.11",
    link=Link.INSIDE,
    how="`--train.agent_func_path` names a file with our executor, which runs in every engine",
    example="attach_openrlhf.py",
    hooks=(
        Hook("trainer/ray/vllm_engine.py", "def _load_agent_executor"),
        Hook("trainer/ray/vllm_engine.py", "async def generate(self, prompt_token_ids"),
        Hook("utils/agent.py", "class AgentExecutorBase"),
        Hook("utils/agent.py", "await llm_engine.generate("),
    ),
    works={
        Ability.PLACE: YES,
        Ability.ADMIT: YES,
        Ability.MIGRATE: YES,
        Ability.DEFER: TOGETHER,
        Ability.SPECULATE: DRAFTS_INSIDE,
        Ability.PROMPTS: AT_RANDOM,
    },
    normaliser="as `--algo.advantage.estimator` says: std for group_norm, else none",
    cannot="a choice of prompts; lag: its engines do not say which weights wrote a token",
)

SLIME = Trainer(
    name="slime",
    title="slime",
    package="slime",
    module="slime",
    tested="624b824 (2026-08-21), read only",
    on_registry=False,
    link=Link.NOWHERE,
    how="its engines are SGLang's; the gateway speaks to vLLM's",
    works=dict.fromkeys(Ability, Verdict(Works.NO, "SGLang's engines are not spoken to")),
    cannot="anything: only its logs can be imported (`steersman import slime`)",
)

TRAINERS: Mapping[str, Trainer] = {
    trainer.name: trainer
    for trainer in (VERL, TRL, SKYRL, PRIME_RL, AREAL, NEMO_RL, ROLL, OPENRLHF, SLIME)
}


def trainer_of(name: str) -> Trainer:
    """Raises `UnknownNameError` for one that is not known."""
    found = TRAINERS.get(name.lower().replace("_", "-"))
    if found is None:
        raise UnknownNameError("trainer", name, TRAINERS)
    return found
