"""One trainer, checked before a run: its environment, its endpoints, and what will work."""

import asyncio
from collections.abc import Sequence

from steersman.controller.attach.endpoints import Seen, look_at_engines, look_at_gateway
from steersman.controller.attach.environment import environment_findings
from steersman.controller.attach.findings import Finding, Report, State
from steersman.controller.attach.trainers import Ability, Trainer, Verdict, Works
from steersman.controller.watching.client import clean_url
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.http_vllm.settings import clean_urls


def check(
    trainer: Trainer,
    *,
    url: str = "",
    engines: Sequence[str] = (),
    token: str = "",
    engine_token: str = "",
    python: str = "",
) -> Report:
    """`url` of a gateway, `engines` of vLLM servers; without engines, the gateway's are asked."""
    if not trainer.over_http and (url or engines):
        raise InvalidInputError(
            f"{trainer.title} does not speak HTTP to its engines: --url and --engines go with "
            "trainers that do"
        )
    findings, seen = environment_findings(trainer, python), Seen()
    if trainer.over_http:
        gateway, servers = clean_url(url) if url else "", clean_urls(engines) if engines else []
        asyncio.run(_look(trainer, gateway, servers, token, engine_token, seen))
    return Report(trainer, findings + seen.findings, _verdicts(trainer, seen))


async def _look(
    trainer: Trainer, url: str, engines: Sequence[str], token: str, engine_token: str, seen: Seen
) -> None:
    if url:
        await look_at_gateway(trainer, url, token, seen)
    else:
        words = "not asked for; --url names it"
        seen.findings.append(Finding("gateway", State.SKIP, words))
    if not engines and seen.state is not None:
        engines = [replica.url for replica in seen.state.replicas if replica.alive]
    if engines:
        await look_at_engines(trainer, engines, engine_token, seen)
    else:
        words = "not asked for; --engines names them"
        seen.findings.append(Finding("engines", State.SKIP, words))


def _verdicts(trainer: Trainer, seen: Seen) -> dict[Ability, Verdict]:
    """What is known of the trainer, less what its gateway and engines keep from it."""
    verdicts = dict(trainer.works)
    decider = None if seen.state is None else seen.state.decider.state
    if decider in ("shadow", "off"):
        only = Verdict(Works.NO, f"the gateway only watches: it is {decider}")
        return {
            ability: verdict if verdict.works is Works.NO else only
            for ability, verdict in verdicts.items()
        }
    abilities = [found.abilities for found in seen.engines]
    if verdicts[Ability.MIGRATE].works is Works.NO:
        return verdicts
    if any(not one.token_ids for one in abilities):
        why = "engines older than vLLM 0.10.2 tell no token ids: what was written is lost"
        verdicts[Ability.MIGRATE] = Verdict(Works.PARTLY, why)
    elif any(not one.abort_path for one in abilities):
        why = "engines that cannot abort by id: a move writes the last tokens anew"
        verdicts[Ability.MIGRATE] = Verdict(Works.PARTLY, why)
    return verdicts
