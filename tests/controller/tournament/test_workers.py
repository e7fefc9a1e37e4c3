"""Games in worker processes: each comes once, and their steps are counted together."""

from support.long_games import counted_steps

from steersman.controller.tournament.workers import outcomes


def test_every_outcome_comes_once_and_all_steps_are_counted() -> None:
    told = list[int]()
    assert sorted(outcomes(counted_steps, [3, 5, 7], 2, told.append)) == [3, 5, 7]
    assert told == sorted(told)
    assert told[-1] == 3 + 5 + 7


def test_without_games_there_is_nothing_to_wait_for() -> None:
    assert not [*outcomes(counted_steps, [], 2)]
