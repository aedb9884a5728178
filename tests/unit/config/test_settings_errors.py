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
        ({"bad_words": [" "]}, "bad_words"),
        ({"guided_structural_tag": "{}"}, "guided_structural_tag"),
        ({"decoder": "other"}, "decoder"),
        ({"decoder": "lopa", "steps": 8}, "steps"),
        ({"ignore_eos": True, "guided_regex": "a"}, "ignore_eos"),
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


@pytest.mark.parametrize("value", [2, "x", True])
def test_a_setting_of_two_types_has_one_message(value: object) -> None:
    with pytest.raises(SettingsError) as error:
        parse_decoder_settings({"acceptance": value})
    assert str(error.value) == f"acceptance: got {value!r}; allowed: a number from 0 to 1, or exact"


def test_an_error_about_a_schema_names_no_setting() -> None:
    with pytest.raises(SettingsError) as error:
        schema_automaton('{"$ref": "steps"}')
    assert error.value.setting is None
