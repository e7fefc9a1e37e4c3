"""Requests cut anywhere, characters spread over tokens: the answer is as if undisturbed."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from support.form_client import CannotGoOnError, Cut, FormClient
from support.script_engine import SPECIAL, ScriptEngine
from support.tiny_chat_model import sentences
from support.vllm_cases import COMPLETIONS, Case, differences, folded

PROMPT = sentences(1, seed=1)[0][:9]
SCENES_PER_TEST = 60


@dataclass
class Scene:
    """A prompt, what is written after it, how it is asked for, and where it is cut."""

    pieces: list[bytes]
    """All tokens there are."""
    prompt: list[int]
    script: list[int]
    case: Case
    cuts: list[Cut]
    seed: int


def pieces_of(text: str, rng: random.Random) -> list[bytes]:
    """Tokens as byte-level tokenizers have them: characters, perhaps with the beginning of one more
    after them, whose other bytes follow one by one or together, or never; and special ones."""
    pieces = []
    while text:
        size = rng.randint(0, 3)
        whole, text = text[:size], text[size:]
        head, rest = b"", b""
        if text and not text[0].isascii() and rng.random() < 0.6:
            character, text = text[0].encode(), text[1:]
            cut = rng.randint(1, len(character) - 1)
            head, rest = character[:cut], character[cut:]
        if whole or head:
            pieces.append(whole.encode() + head)
        if rest and rng.random() < 0.8:  # else it stays broken
            pieces += [bytes([byte]) for byte in rest] if rng.random() < 0.5 else [rest]
        if rng.random() < 0.1:
            pieces.append(SPECIAL)
    return pieces


def scene_of(seed: int) -> Scene:
    rng = random.Random(seed)
    text = "".join(sentences(3, seed))[:60]
    written, before = pieces_of(text, rng), pieces_of(PROMPT, rng)
    pieces = list(dict.fromkeys([*before, *written]))
    begin = rng.randrange(len(text) - 2)
    body = {
        "prompt": PROMPT if rng.random() < 0.3 else [pieces.index(piece) for piece in before],
        "max_tokens": len(written),
        "return_token_ids": True,
        "stop": rng.choice(
            [[], [text[begin : begin + rng.randint(1, 6)]], ["b\n", text[begin:][:3]]]
        ),
        "include_stop_str_in_output": rng.random() < 0.5,
        "min_tokens": rng.choice([0, 0, 7]),
        "logprobs": rng.choice([None, 0]),
        "return_tokens_as_token_ids": rng.random() < 0.5,
        "temperature": rng.choice([0, 1.0]),
        "stream": rng.random() < 0.5,
    }
    way = rng.choice(["close", "abort"])
    # what `seam` says is left of the problem
    least = 4 if body["stream"] and body["temperature"] else 1
    cuts = sorted(rng.choices(range(least, len(written)), k=rng.randint(1, 3)))
    return Scene(
        pieces,
        [pieces.index(piece) for piece in before],
        [pieces.index(piece) for piece in written],
        Case(f"scene {seed}", COMPLETIONS, body),
        [Cut(at, way) for at in cuts],
        seed,
    )


async def answer_of(scene: Scene, cuts: list[Cut]) -> Any:
    engine = ScriptEngine(scene.pieces, scene.prompt, scene.script, scene.seed)
    answer = await FormClient(engine, ["a", "b"], cuts=cuts).answer(scene.case)
    return folded(answer) if scene.case.body["stream"] else answer


@pytest.mark.parametrize("first", range(0, 10 * SCENES_PER_TEST, SCENES_PER_TEST))
async def test_no_seam_shows(first: int) -> None:
    given_up = 0
    for seed in range(first, first + SCENES_PER_TEST):
        scene = scene_of(seed)
        undisturbed = await answer_of(scene, [])
        try:
            answer = await answer_of(scene, scene.cuts)
        except CannotGoOnError:
            # its client has seen some, and its dead engine kept back text that nobody can tell
            body = scene.case.body
            assert body["stream"], scene
            assert body["stop"], scene
            assert not body["include_stop_str_in_output"], scene
            given_up += 1
        else:
            assert differences(undisturbed, answer) == [], scene
    assert given_up <= SCENES_PER_TEST * 0.05
