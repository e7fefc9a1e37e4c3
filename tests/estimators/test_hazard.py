import math

import numpy as np
import pytest

from steersman.estimators._hazard import Hazard, normal_hazard


def test_the_normal_hazard_is_that_of_the_distribution_however_far_out() -> None:
    z = np.array([-9.0, -2.0, 0.0, 3.0, 11.9])
    exact = [
        math.exp(-x * x / 2) / (math.sqrt(math.pi / 2) * math.erfc(x / math.sqrt(2))) for x in z
    ]
    assert normal_hazard(z) == pytest.approx(exact, rel=1e-4, abs=1e-14)
    assert normal_hazard(np.array([0.0, 50.0])) == pytest.approx(
        [math.sqrt(2 / math.pi), 50.02], rel=1e-4
    )
    assert normal_hazard(np.zeros(0)).shape == (0,)


def test_what_lies_outside_the_grid_counts_in_its_outermost_bins() -> None:
    curve = Hazard(0.0, 2.0, np.ones(2), 1.0)
    curve.add(np.array([-1.0, 0.0]), np.array([0.5, 5.0]), np.array([0, 1]))
    assert curve.edges.tolist() == [0.0, 1.0, 2.0]
    assert curve.exposure.tolist() == [1.5, 1.0]
    assert curve.events.tolist() == [1.0, 1.0]
