"""Advice is an input of the decision, so the trace has it with the observation."""

from dataclasses import replace

import msgspec
import numpy as np
from support.observations import random_observation

from steersman.controller.trace import records as rec
from steersman.estimators.observation import Advice


def test_advice_survives_the_trace_to_the_bit() -> None:
    advice = Advice(3, 12.5, ("default", "hold 2x"), np.array([0.1, 1 / 3]), np.array([0.0, 2e-9]))
    seen = replace(random_observation(np.random.default_rng(0), 9, 2), advice=advice)
    line = msgspec.json.encode(rec.observation_to_record(seen))
    record = msgspec.json.decode(line, type=rec.Record)
    assert isinstance(record, rec.ObservationRecorded)
    back = rec.record_to_observation(record).advice
    assert back is not None
    assert (back.step, back.asked_s, back.plans) == (3, 12.5, advice.plans)
    assert back.mean_s.tobytes() == advice.mean_s.tobytes()
    assert back.error_s.tobytes() == advice.error_s.tobytes()


def test_a_trace_without_advice_is_still_read() -> None:
    seen = random_observation(np.random.default_rng(0), 9, 2)
    content = msgspec.to_builtins(rec.observation_to_record(seen))
    del content["advice"]
    record = msgspec.convert(content, rec.ObservationRecorded)
    assert rec.record_to_observation(record).advice is None
