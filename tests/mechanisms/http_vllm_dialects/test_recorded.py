"""Forms and dialects on what real servers wrote: the answer is the engine's own, cut or not."""

import pytest
from support.form_client import Cut, FormClient
from support.vllm_cases import CUT, GENERATE, UNDERSTOOD, differences, folded
from support.vllm_recordings import Player, Recording, recordings

CASES = {case.name: case for case in (*UNDERSTOOD, *CUT)}
UNCUT = {case.name: case for case in UNDERSTOOD}


def named(recording: Recording) -> str:
    """For a person."""
    how = ", streamed" if recording.streamed else ""
    return f"{recording.case}{how}{' cut at ' + str(recording.cut) if recording.cut else ''}"


@pytest.mark.parametrize("recording", recordings(), ids=named)
async def test_an_answer_is_that_of_an_engine_that_was_not_disturbed(recording: Recording) -> None:
    case = (CASES if recording.cut else UNCUT)[recording.case]
    if recording.streamed:
        case = case.streamed(interval=4)
    cuts = [Cut(*recording.cut)] if recording.cut else []
    client = FormClient(Player(recording), ["a", "b"], cuts=cuts)
    answer = await client.answer(case)
    want = recording.direct
    if recording.streamed:
        want, answer = folded(want), folded(answer)
    found = differences(want, answer)
    if case.path == GENERATE and "close" in recording.cut:
        # an engine tells the versions of weights at its end, and this one never came to it
        found = [difference for difference in found if "weight_versions" not in difference]
    assert found == []
    assert len(client.attempts) == len(recording.exchanges)
