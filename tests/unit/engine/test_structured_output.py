"""Structured output from the model of the package: text that matches."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from support.tiny_model import TINY_MODEL

PROMPT = "Tom has 3 boxes with 4 pens each. How many pens does he have?"
PENS = r"[A-Z][a-z]+ has \d\*\d=\d\d pens\.\n#### \d\d?"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "regex": {"guided_regex": PENS},
    "json": {"guided_json": PERSON},
    "object": {"guided_json": {"type": "object"}},
    "choice": {
        "guided_choice": ["12 pens", "12", "pens", "twelve"],
        "bad_words": ["pens", "2"],
    },
    "tag": {
        "guided_structural_tag": {
            "structures": [{"begin": "*", "schema": {"enum": [5, 7]}, "end": "="}],
            "triggers": ["*"],
        },
        "bad_words": ["pens"],
    },
}
"""The model writes 3*4 and pens into its answer."""
SETTINGS: dict[str, GenerationSettings] = {
    "lopa": LopaSettings(max_new_tokens=48, num_branches=4, ranking="neg_entropy"),
    "lopa, block-causal": LopaSettings(
        max_new_tokens=48, num_branches=3, block_size=7, window_attention="block_causal", stop_at_eos=False
    ),
    "lopa, blocks from position 0": LopaSettings(
        max_new_tokens=48, num_branches=3, block_size=8, window_attention="tiled"
    ),
    "lopa, drawn": LopaSettings(max_new_tokens=48, temperature=1.0, top_p=0.9, top_k=3, min_tokens=2),
    "d2f": D2FSettings(max_new_tokens=48, block_size=16, ranking="margin"),
    "vanilla": VanillaSettings(max_new_tokens=48, steps=24, num_branches=3),
    "autoregressive": NemotronSettings(max_new_tokens=48, block_size=1),
    "edited": MultiBlockSettings(
        max_new_tokens=48, block_size=8, confidence_threshold=0.5, editing_threshold=0.0, num_branches=3
    ),
}
SETTINGS |= {
    name: decoder.smallest.replace(max_new_tokens=48, stop_at_eos=True)
    for name, decoder in DECODERS.items()
    if decoder.takes("guided_regex") and name not in SETTINGS
}


def keeps(settings: GenerationSettings, text: str) -> bool:
    if any(word in text for word in settings.bad_words):
        return False
    if settings.guided_structural_tag is not None:
        return re.fullmatch(r"[^*]*(\*[57]=[^*]*)*", text) is not None
    if settings.guided_regex is not None:
        return re.fullmatch(settings.guided_regex, text, re.ASCII) is not None
    if settings.guided_choice is not None:
        return text in settings.guided_choice
    value = json.loads(text)
    if settings.guided_json == json.dumps(PERSON):
        return value.keys() == {"name", "age"} and len(value["name"]) <= 12 and value["age"] in range(131)
    return isinstance(value, dict)


@pytest.mark.medium
@pytest.mark.parametrize(
    "kind", ["regex", "json", "choice", "tag", pytest.param("object", marks=pytest.mark.nightly)]
)
def test_answers_keep_to_what_was_asked(engine: LocalEngine, kind: str) -> None:
    wanted = [settings.replace(**KINDS[kind]) for settings in SETTINGS.values()]
    results = [engine.generate(PROMPT, settings) for settings in wanted]
    for settings, result in zip(wanted, results, strict=True):
        assert result.text is not None
        assert keeps(settings, result.text), (settings.decoder, result.text)
        assert result.finish_reason == "stop" or kind == "tag"
    assert any("*" in str(result.text) for result in results) or kind != "tag"


def test_a_probability_is_what_the_model_gave_the_token(engine: LocalEngine) -> None:
    """Not what is left of it under the constraint: that would be 1 for a token that nothing competes with."""
    free = engine.generate(PROMPT, D2FSettings(max_new_tokens=48), trace=True)
    bound = engine.generate(PROMPT, D2FSettings(max_new_tokens=48, guided_choice=["zebra"]), trace=True)
    assert free.trace is not None and bound.trace is not None
    assert bound.text == "zebra"
    assert min(decision.probability for step in bound.trace for decision in step.decided) < 0.01
    assert bound.steps <= 5


def test_a_model_without_a_tokenizer_cannot_keep_to_text() -> None:
    bare = LocalEngine.from_pretrained(TINY_MODEL)
    with pytest.raises(SettingsError, match="no tokenizer"):
        bare.create_session([1, 2], D2FSettings(max_new_tokens=9, guided_choice=["a"]))
