"""Errors about settings name the setting, also when they come from another process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lopa_ray.constraints.json_schema import schema_automaton
from lopa_ray.decoding.decoders import new_session, parse_decoder_settings
from lopa_ray.errors import SettingsError
from support.fake_model import VOCABULARY


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": -1.0, "top_k": 0}, "temperature"),
        ({"logit_bias": {"4": 999.0}}, "logit_bias"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"guided_structural_tag": "{}"}, "guided_structural_tag"),
        ({"surprise": 1}, "surprise"),
        ({"decoder": "other"}, "decoder"),
        ({"decoder": "lopa", "steps": 8}, "steps"),
        ({"decoder": "vanilla", "max_new_tokens": 8, "block_size": 4, "steps": 3}, "steps"),
        ({"min_tokens": 9, "max_new_tokens": 8}, "min_tokens"),
        ({"ignore_eos": True, "guided_regex": "a"}, "ignore_eos"),
        ({"branch_confidence": "product", "ranking": "neg_entropy"}, "branch_confidence"),
        ({"commit_protocol": "single_phase"}, "commit_protocol"),
        ({"decoder": "fast_dllm", "fill": "schedule"}, "fill"),
        ({"decoder": "block_diffusion", "sub_block_cache": True}, "sub_block_cache"),
        ({"guided_regex": "a", "guided_json": "{}"}, "guided_regex"),
        ({"stop_token_ids": [50]}, "stop_token_ids"),
        ({"logit_bias": {"50": 1.0}}, "logit_bias"),
    ],
)
def test_the_error_names_the_setting(values: dict[str, Any], setting: str | None) -> None:
    with pytest.raises(SettingsError) as error:
        new_session([1], parse_decoder_settings(values), VOCABULARY)
    received = pickle.loads(pickle.dumps(error.value))
    assert (received.setting, str(received)) == (setting, str(error.value))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_branches": 0}, "num_branches: got 0; allowed: a whole number from 1 to 1024, or auto"),
        ({"acceptance": 2}, "acceptance: got 2; allowed: a number from 0 to 1, or exact"),
        ({"acceptance": "x"}, "acceptance: got 'x'; allowed: a number from 0 to 1, or exact"),
        ({"acceptance": True}, "acceptance: got True; allowed: a number from 0 to 1, or exact"),
        ({"acceptance": float("nan")}, "acceptance: got nan; allowed: a number from 0 to 1, or exact"),
    ],
)
def test_a_setting_of_two_types_has_one_message(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_decoder_settings(values)
    assert str(error.value) == message


def test_an_error_about_a_schema_names_no_setting() -> None:
    with pytest.raises(SettingsError) as error:
        schema_automaton('{"$ref": "steps"}')
    assert error.value.setting is None
