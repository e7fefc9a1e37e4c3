from steersman.policies.adaptive.plans import DEFAULT, HELD, PLANS


def test_plans_have_names_of_their_own_and_the_first_is_the_trainers_rule() -> None:
    assert len({plan.name for plan in PLANS}) == len(PLANS)
    assert PLANS[0] is DEFAULT
    assert not DEFAULT.hold


def test_held_plans_promise_ever_more() -> None:
    promises = [plan.promise for plan in HELD]
    assert all(plan.hold for plan in HELD)
    assert promises == sorted(set(promises))
    assert promises[0] == 1.0  # nothing is ever evicted
