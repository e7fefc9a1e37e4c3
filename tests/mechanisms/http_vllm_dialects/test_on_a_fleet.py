"""Dialects on a fleet: several requests may make one attempt."""

from support.attempts import carried_out, end_of, until
from support.fake_model import reference, text_of
from support.fake_vllm import FakeVllm
from support.plain_dialect import request_of

from steersman.mechanisms.fleet import EndReason
from steersman.mechanisms.http_vllm.ask import Ask
from steersman.mechanisms.http_vllm.dialects.completions import COMPLETIONS
from steersman.mechanisms.http_vllm.fleet import HttpFleet, HttpSettings

PROMPT, LENGTH = [40, 50, 60], 40


async def test_a_seam_in_what_may_become_a_stop_string_is_passed_within_one_attempt() -> None:
    tokens = reference(PROMPT, LENGTH, ignore_eos=True)
    text = text_of(tokens)
    # after every character a stop string may have begun, and none ever comes
    stop = [f"{character}\N{SNOWMAN}" for character in sorted(set(text))]
    body = {"prompt": PROMPT, "max_tokens": LENGTH, "ignore_eos": True, "stop": stop}
    settings = HttpSettings(scrape_s=0.05, stall_timeout_s=30.0)
    async with FakeVllm(token_s=0.005) as first, FakeVllm() as second:
        fleet = await HttpFleet.attach([first, second], settings)
        ask = Ask(COMPLETIONS, "/v1/completions", body, {}, LENGTH, prompt_token_ids=PROMPT)
        ask.streamed = True
        attempt = fleet.start("engine-0", request_of(ask, "a-0"))
        await until(lambda: len(ask.token_ids) >= 5)
        fleet.abort(attempt)
        assert (await end_of(attempt)).reason is EndReason.ABORT
        written = len(ask.token_ids)
        end = await carried_out(fleet, "engine-1", ask, "a-1")
        await fleet.close()
    assert (end.reason, end.tokens) == (EndReason.LENGTH, tokens[written:])
    assert ask.token_ids == tokens
    assert "".join(delta.text for delta in ask.deltas) == text
