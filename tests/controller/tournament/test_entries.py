"""Entries with options: one spelling each, checked as the configuration is, and really played."""

import pytest

from steersman.controller.replay.run import replay
from steersman.controller.tournament.cell import Game, Settings
from steersman.controller.tournament.entries import DEFAULTS, entries, entry
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.controller.tournament.play import play
from steersman.controller.tournament.workloads import arenas
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass

OUTSIDE = "steersman.policies.placement.tail_planner:TailPlanner"


def test_a_policy_takes_part_with_and_without_an_option_next_to_the_default() -> None:
    names = [one.name for one in entries(["tail_planner", "tail_planner,max_moves=0"])]
    assert names == [DEFAULTS["placement"], "tail_planner", "tail_planner,max_moves=0"]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("seer", "seer"),
        (" tail_planner , backlog = 4,  max_moves=0", "tail_planner,backlog=4,max_moves=0"),
        ("tail_planner,max_moves=0,backlog=4", "tail_planner,backlog=4,max_moves=0"),
        ("tail_planner,placement.max_moves=0", "tail_planner,max_moves=0"),
        ("tail_planner,placement.options.max_moves=0", "tail_planner,max_moves=0"),
        (
            "tail_planner,length.options.use_history=false,max_moves=0",
            "tail_planner,max_moves=0,length.use_history=false",
        ),
        ("tail_planner,guard.max_deferrals=0,max_lag=0", ",guard.max_deferrals=0,max_lag=0"),
        ("uniform,seed=3", "uniform,seed=3"),
        (f"{OUTSIDE},max_moves=0", f"{OUTSIDE},max_moves=0"),
    ],
)
def test_what_is_written_in_two_ways_has_one_label(text: str, label: str) -> None:
    made = entries([text])[-1].name
    assert made == (f"tail_planner{label}" if label.startswith(",") else label)
    assert entries([made])[-1].name == made


def test_an_option_reaches_the_stack_and_is_stronger_than_the_workloads() -> None:
    one = entry("placement", "tail_planner,max_moves=0,tick_s=3,length.use_siblings=false")
    config = one.config(["tick_s=1.0", "max_lag=2"])
    assert config.placement.options == {"max_moves": 0}
    assert config.length.options == {"use_siblings": False}
    assert (config.tick_s, config.max_lag) == (3.0, 2)


def test_an_estimator_is_chosen_with_its_own_options() -> None:
    one = entry("placement", "seer,length.name=length_boosted,length.refit_every=2")
    assert one.config().length.name == "length_boosted"
    assert one.config().length.options == {"refit_every": 2}


def test_a_list_is_one_value() -> None:
    with pytest.raises(InvalidInputError, match=r"'backlog' of tail_planner is \[1, 2\]"):
        entries(["tail_planner,backlog=[1,2],max_moves=0"])


def test_a_stack_is_as_bad_as_its_worst_policy_and_oversamples_with_its_placement() -> None:
    assert entry("placement", "seer").correctness is CorrectnessClass.EXACT
    worst = entry("placement", "seer,stopping.name=repetition_stop").correctness
    assert worst is entry("stopping", "repetition_stop").correctness > CorrectnessClass.EXACT
    assert entry("stopping", "espo,placement.name=april").oversamples


def test_what_differs_from_the_default_is_not_the_default() -> None:
    default = DEFAULTS["placement"]
    assert entry("placement", default).is_default
    assert not entry("placement", f"{default},tick_s=2").is_default


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tail_planner,max_mvoes=0", "option of tail_planner 'max_mvoes'; did you mean 'max_moves"),
        ("tail_planer,max_moves=0", "unknown policy 'tail_planer'; did you mean 'tail_planner'?"),
        ("tail_planner,max_moves=some", "'max_moves' of tail_planner is 'some'"),
        ("tail_planner,length.use_histroy=0", "'use_histroy'; did you mean 'use_history'?"),
        ("tail_planner,length.use_history=3", "'use_history' of length is 3"),
        ("tail_planner,length.name=lenght", "did you mean 'length'?"),
        ("tail_planner,lenght.use_history=false", "'lenght'; did you mean 'length'?"),
        ("tail_planner,guard.max_defferals=0", "did you mean 'guard.max_deferrals'?"),
        ("tail_planner,guard.max_deferrals=-1", "guard.max_deferrals"),
        ("tail_planner,tick_s=0", "tick_s is 0"),
        ("tail_planner,", "is not of the form key=value"),
        ("tail_planner,max_moves", "'max_moves' is not of the form key=value"),
        ("tail_planner,max_moves=", "is not of the form key=value"),
        ("tail_planner,max_moves=0,placement.max_moves=1", "gives max_moves twice"),
        ("tail_planner,placement.name=seer", "before the first comma"),
        ("tail_planner,mode=off", "mode has no effect in a simulation"),
        ("tail_planner,trace.path=x", "trace has no effect in a simulation"),
        ("greso,no_such=1", "unknown option of greso 'no_such'"),
        (f"{OUTSIDE},max_mvoes=0", "did you mean 'max_moves'?"),
    ],
)
def test_bad_input_is_told_in_one_line(text: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        entries([text])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_game_is_played_with_its_entrys_options() -> None:
    """With no moves among its options, a policy that moves does not."""
    settings = Settings("1.0", quick=True, profile="")
    name = "tail_planner,imbalance=0.05,cooldown_s=2"
    moved = play(Game("few_groups", "placement", name, 0), settings)
    still = play(Game("few_groups", "placement", f"{name},max_moves=0", 0), settings)
    assert moved.moves > 0
    assert still.moves == 0
    assert still.game.policy.endswith("max_moves=0")


def test_the_same_policy_plays_another_game_without_an_estimator_of_siblings() -> None:
    arena = arenas()["siblings_alike"]
    workload = made_up(Lengths(groups=24, steps=1, p90_over_p50=3.0, prompt_share=0.95), 0)
    seconds = [
        sum(
            step.makespan_s
            for step in replay(workload, arena.plan, one.config(arena.overrides)).steps
        )
        for one in entries(["tail_planner", "tail_planner,length.use_siblings=false"])[1:]
    ]
    assert seconds[0] != seconds[1]


def test_options_are_checked_before_they_are_asked_for_their_class() -> None:
    with pytest.raises(InvalidInputError, match="'allow' of adaptive is 'all'"):
        entry("placement", "adaptive,allow=all")
    assert entry("placement", "adaptive,allow=corrected").correctness is CorrectnessClass.CORRECTED
