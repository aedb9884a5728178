"""What each decoder has no place for, and which of its settings contradict each other: refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from lopa_ray.decoding.decoders import DECODERS, parse_decoder_settings
from lopa_ray.errors import SettingsError
from support.settings_strategies import OTHER_VALUES

OF_FILLING = {"num_branches": 2, "fuse_store": True, "sub_block_size": 2}
OF_FILLING |= dict.fromkeys(("settled", "credit_alpha", "sdar_confidence"), 0.5)
VALUES = {"lookahead": "verified", **OF_FILLING, **OTHER_VALUES}


@pytest.mark.parametrize("name", DECODERS)
def test_what_a_decoder_has_no_place_for_is_refused_by_name(name: str) -> None:
    decoder = DECODERS[name]
    assert decoder.smallest.refused.keys() <= VALUES.keys()
    for setting in VALUES.keys() & decoder.settings.model_fields.keys():
        values = {"decoder": name, setting: VALUES[setting]}
        if decoder.takes(setting):
            assert parse_decoder_settings(values).is_changed(setting)
            continue
        with pytest.raises(SettingsError, match=f"^{setting}: .*with decoder {name}: .*") as caught:
            parse_decoder_settings(values)
        assert caught.value.setting == setting
        # An answer's text may be long.
        assert ("got " in str(caught.value)) == (
            not setting.startswith(("guided", "given", "suffix", "draft"))
        )


def test_values_that_say_off_are_not_refused() -> None:
    off = {"top_p": 1.0, "given_parts": (), "suffix": "", "bad_words": (), "draft": ()}
    assert parse_decoder_settings({"decoder": "renoising", **off}).top_p == 1.0


VERIFIED = {"lookahead": "verified", "num_branches": 8}
EDITS = {"decoder": "multi_block", "editing_threshold": 0.4}


@pytest.mark.parametrize(
    ("values", "setting", "message"),
    [
        ({"decoder": "dmax", **VERIFIED}, "lookahead", "leave lookahead out"),
        ({"decoder": "editing", "presence_penalty": 1.0}, "presence_penalty", "leave presence_penalty out"),
        ({"decoder": "nemotron", **VERIFIED}, "lookahead", "self_speculation"),
        ({"decoder": "self_speculation", "bad_words": ("a",)}, "bad_words", "or use decoder nemotron"),
        ({**EDITS, "lookahead": "verified"}, "lookahead", "leave lookahead out"),
        ({**EDITS, "repetition_penalty": 1.1}, "repetition_penalty", "leave repetition_penalty out"),
        ({**EDITS, "decoded_token_threshold": 0.5}, "decoded_token_threshold", "with editing_threshold"),
        ({"decoder": "multi_block", "stability_threshold": 0.5}, "stability_threshold", "no use without"),
        ({"decoder": "multi_block", "max_post_steps": 4}, "max_post_steps", "no use without"),
        ({"decoder": "multi_block", "max_blocks": 0}, "max_blocks", "or equal to 1"),
        ({"decoder": "nemotron", "max_thinking_tokens": 3}, "max_thinking_tokens", "other half"),
        ({"decoder": "nemotron", "end_think_token_id": 3}, "end_think_token_id", "other half"),
        (
            {"decoder": "nemotron", "max_thinking_tokens": 3, "end_think_token_id": 7, "guided_regex": "a"},
            "max_thinking_tokens",
            "guided_regex",
        ),
        ({"decoder": "self_speculation", "confidence_threshold": 0.5}, "confidence_threshold", "separate"),
        (
            {"decoder": "self_speculation", "drafting": "separate", "num_branches": 2},
            "num_branches",
            "joint",
        ),
        ({**VERIFIED, "branch_confidence": "bottom(0.3)"}, "branch_confidence", "lookahead verified"),
        ({**VERIFIED, "creation_confidence_alpha": 0.5}, "creation_confidence_alpha", "lookahead verified"),
        ({**VERIFIED, "tokens_per_fork": 2}, "tokens_per_fork", "lookahead verified"),
        ({**VERIFIED, "acceptance": "nearly"}, "acceptance", "from 0 to 1, or exact"),
        ({"acceptance": 0.5}, "acceptance", r"0\.5 without drafts"),
        ({"tokens_per_fork": 3}, "tokens_per_fork", "or equal to 2"),
        ({"decoder": "editing", "num_to_transfer": 0}, "num_to_transfer", "or equal to 1"),
        ({"decoder": "editing", "max_post_steps": -1}, "max_post_steps", "or equal to 0"),
        ({"decoder": "editing", "editing_threshold": 1.5}, "editing_threshold", "or equal to 1"),
        ({"decoder": "dmax", "confidence_threshold": 1.5}, "confidence_threshold", "or equal to 1"),
        ({"decoder": "block_diffusion", "block_size": 16, "sub_block_size": 5}, "sub_block_size", "divisor"),
        ({"decoder": "block_diffusion", "sub_block_cache": True}, "sub_block_cache", "without sub_block"),
        (
            {"decoder": "block_diffusion", "block_size": 16, "sub_block_size": 4, "fuse_store": True},
            "fuse_store",
            "with sub_block_size",
        ),
    ],
)
def test_settings_that_contradict_each_other_or_their_bounds_are_refused(
    values: dict[str, Any], setting: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=f"{setting}.*{message}") as caught:
        parse_decoder_settings(values)
    assert caught.value.setting == setting
