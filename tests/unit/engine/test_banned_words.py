"""Words that no answer has, and structural tags, whatever order a decoder fills in."""

from __future__ import annotations

import json

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.local import LocalEngine

PROMPT = "Tom has 3 boxes with 4 pens each. How many pens does he have?"
DECODERS: dict[str, GenerationSettings] = {
    "lopa": LopaSettings(max_new_tokens=32, num_branches=3, block_size=7),
    "lopa, drawn": LopaSettings(max_new_tokens=32, temperature=1.0, num_branches=3, seed=2),
    "d2f": D2FSettings(max_new_tokens=32, block_size=16),
    "vanilla": VanillaSettings(max_new_tokens=32, steps=16, remasking="random"),
    "block_diffusion": BlockDiffusionSettings(max_new_tokens=32),
}
TAG = {"structures": [{"begin": "*", "schema": {"enum": [5, 7]}, "end": "="}], "triggers": ["*"]}
"""The model writes 3*4 into its answer."""


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.from_pretrained("demo")


def spelled(engine: LocalEngine, result: GenerationResult, words: tuple[str, ...]) -> list[str]:
    """Runs of whole tokens, up to the end of the text, that spell one of the words or that behind a space."""
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    ids = result.token_ids
    eos = engine.vocabulary.eos_token_id
    texts = [tokenizer.token_bytes(token) for token in (ids[: ids.index(eos)] if eos in ids else ids)]
    wanted = {prefix + word.encode() for word in words for prefix in (b"", b" ")}
    longest = max(map(len, wanted))
    runs = [
        b"".join(texts[start:stop])
        for start in range(len(texts))
        for stop in range(start + 1, min(len(texts), start + longest) + 1)
    ]
    return [run.decode() for run in runs if run in wanted]


@pytest.mark.parametrize("decoder", DECODERS)
def test_no_answer_has_a_banned_word(engine: LocalEngine, decoder: str) -> None:
    settings = DECODERS[decoder]
    result = engine.generate(PROMPT, settings)
    words: tuple[str, ...] = ()
    for _ in range(2):  # words that it would have
        assert result.text is not None
        words += tuple(result.text.split()[:3])
        assert spelled(engine, result, words)
        result = engine.generate(PROMPT, settings.replace(bad_words=words))
        assert not spelled(engine, result, words), result.text


@pytest.mark.parametrize("decoder", DECODERS)
def test_nor_one_that_keeps_to_a_schema(engine: LocalEngine, decoder: str) -> None:
    schema = json.dumps(
        {"type": "array", "items": {"enum": ["pens", "boxes", "12"]}, "minItems": 2, "maxItems": 3}
    )
    words = ("pens", "2")
    bound = DECODERS[decoder].replace(guided_json=schema, bad_words=words)
    result = engine.generate(PROMPT, bound)
    assert result.text is not None
    assert set(json.loads(result.text)) == {"boxes"} or "12" in json.loads(result.text)
    assert not spelled(engine, result, words), result.text


@pytest.mark.parametrize("words", [(), ("pens",)])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_trigger_is_followed_by_its_structure(
    engine: LocalEngine, decoder: str, words: tuple[str, ...]
) -> None:
    settings = DECODERS[decoder].replace(guided_structural_tag=json.dumps(TAG), bad_words=words)
    result = engine.generate(PROMPT, settings)
    assert result.text is not None
    _, *behind = result.text.split("*")
    assert behind
    for part in behind:
        value, end, _ = part.partition("=")
        assert end and json.loads(value) in (5, 7), result.text
    assert not words or not spelled(engine, result, words), result.text


def test_company_changes_no_bit(engine: LocalEngine) -> None:
    wanted: list[GenerationSettings] = [
        settings.replace(bad_words=("pens", "has"), guided_structural_tag=tag)
        for settings, tag in zip(DECODERS.values(), (None, json.dumps(TAG), None), strict=False)
    ]
    together = dict(engine.run([engine.create_session(PROMPT, settings) for settings in wanted], trace=True))
    for index, settings in enumerate(wanted):
        alone, result = engine.generate(PROMPT, settings, trace=True), together[index]
        assert isinstance(result, GenerationResult)
        assert (result.token_ids, result.trace) == (alone.token_ids, alone.trace)
