"""Real TRL training on a CPU, with real engines behind the real gateway, and without it.

All arms: the signs task, 24 steps of 32 samples in groups of 8, one seed, equal optimizers; they
differ in who rolls out.  Quality is the share of held-out problems solved, asked of the engines
before the first step and after the last; its gain is tested problem by problem.
"""

import math
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.trl_runs import Lab, gateway_process, lab

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(900)]

STEPS = 24
RUN_S = 300.0
"""One run takes about a minute on two idle cores."""
Z = 1.64
"""Of the gain over its standard error: one-sided, 5 %."""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("trl")) as made:
        yield made


def rewards_of(told: dict[str, Any]) -> list[float]:
    return [entry["reward"] for entry in told["logs"] if "reward" in entry]


def gain_of(told: dict[str, Any]) -> tuple[float, float]:
    """Of quality, and its standard error."""
    first, *_, last = (told["quality"][k] for k in sorted(told["quality"], key=int))
    gains = [after - before for before, after in zip(first, last, strict=True)]
    mean = sum(gains) / len(gains)
    variance = sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1)
    return mean, math.sqrt(variance / len(gains))


def report(name: str, told: dict[str, Any]) -> str:
    rewards, (gain, error) = rewards_of(told), gain_of(told)
    quarter = len(rewards) // 4
    first, last = sum(rewards[:quarter]) / quarter, sum(rewards[-quarter:]) / quarter
    return (
        f"{name}: reward {first:.3f} -> {last:.3f}, quality {gain:+.3f} +- {error:.3f}, "
        f"{told['seconds']:.0f} s, {told.get('counts') or ''}"
    )


def test_training_improves_through_the_gateway_and_with_trls_own_worker(
    engines: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", str(STEPS), "--held-out", "300", "--evaluations", "1"]
    with gateway_process(engines) as (url, _):
        run = engines.run("steersman", "steersman", RUN_S, "--gateway", url, *options)
        steered = run.result()
    plain = engines.run("plain", "plain", RUN_S, *options, urls=engines.urls[:1]).result()
    for name, told in (("through the gateway", steered), ("TRL's own", plain)):
        with capsys.disabled():
            sys.stderr.write(f"\n{report(name, told)}\n")
        gain, error = gain_of(told)
        assert len(rewards_of(told)) == STEPS
        assert gain > Z * error, report(name, told)
    counts = steered["counts"]
    assert counts["filtered"] > 0, counts
    assert counts["revisits"] > 0, counts
    entries = [entry for entry in steered["logs"] if "steersman/steered" in entry]
    assert all(entry["steersman/steered"] == 1.0 for entry in entries)
    assert entries[0]["ratio"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("arm", ["grpo", "grpo-func"])
def test_the_synchronous_trainer_takes_its_groups_and_weights_through_the_gateway(
    engines: Lab, arm: str
) -> None:
    options = ["--steps", "3", "--held-out", "20", "--evaluations", "1"]
    with gateway_process(engines) as (url, _):
        told = engines.run(arm, arm, 120.0, "--gateway", url, *options).result()
    assert told["weight_version"] == 3
    steps = [entry for entry in told["logs"] if "reward" in entry]
    assert len(steps) == 3
    if arm == "grpo":  # TRL compares the engines' log-probabilities with its own
        assert all(entry["sampling/sampling_logp_difference/max"] < 1e-3 for entry in steps)


def test_with_plain_a_run_goes_on_to_its_end_when_the_gateway_is_killed(engines: Lab) -> None:
    options = ["--steps", "12", "--held-out", "0", "--on-loss", "plain"]
    with gateway_process(engines) as (url, gateway):
        run = engines.run("killed-plain", "steersman", 180.0, "--gateway", url, *options)
        run.reach("step 3 ")
        gateway.kill()
        told = run.result()
    assert len(rewards_of(told)) == 12
    assert told["losses"] == 1
    assert run.log.read_text().count("is lost (") == 1
    assert told["logs"][10]["steersman/steered"] == 0.0


def test_with_stop_a_run_ends_with_a_clear_error_when_the_gateway_is_killed(engines: Lab) -> None:
    options = ["--steps", "500", "--held-out", "0", "--on-loss", "stop", "--patience", "5"]
    with gateway_process(engines) as (url, gateway):
        run = engines.run("killed-stop", "steersman", 120.0, "--gateway", url, *options)
        run.reach("step 3 ")
        gateway.kill()
        told = run.result(fails=True)
    assert "is lost for 5 s" in told["error"]
    assert 'on_loss="stop" ends the run' in told["error"]


def test_a_gateway_that_stands_still_is_found_out_and_used_again_when_it_moves(
    engines: Lab,
) -> None:
    options = ["--steps", "24", "--held-out", "0", "--on-loss", "plain", "--retry", "2"]
    with gateway_process(engines) as (url, gateway):
        run = engines.run("still", "steersman", 240.0, "--gateway", url, *options)
        run.reach("step 3 ")
        os.kill(gateway.pid, signal.SIGSTOP)
        try:
            run.reach("is lost (")
        finally:
            os.kill(gateway.pid, signal.SIGCONT)
        run.reach("answers again")
        told = run.result()
    assert len(rewards_of(told)) == 24
    assert told["losses"] == 1
    steered = [entry["steersman/steered"] for entry in told["logs"] if "reward" in entry]
    assert min(steered) < 1.0
    assert steered[-1] == 1.0
