"""The configuration reference, from the settings' own descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.settings import ModelEntry, ServeSettings
from lopa_ray.config.decision_settings import DecisionSettings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.config.scaling_settings import ScalingSettings
from lopa_ray.config.strict import FIELDS
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.engine.config import Config

HEAD = """# Settings

A YAML file has four sections: `model` (the checkpoint and its format), `group` (workers and the resources of each),
`decode` (the defaults of a request) and `decisions` (typed questions). Any setting can be given on the command line as
`--set section.key=value`. Unknown keys and impossible combinations are errors. `lopa config` prints every setting with
its value. A server on Ray Serve has settings of its own, the arguments of its application. This page is generated from
the classes in `lopa_ray/config`, `lopa_ray/decoding/decoders`, `cluster/serving/settings.py` and
`cluster/serving/http/http_settings.py`.
"""


def _in_yaml(value: Any) -> str:
    """A default as a file has it, on one line."""
    text: str = yaml.safe_dump(
        to_jsonable_python(value), default_flow_style=True, sort_keys=False, width=1000
    )
    return text.removesuffix("...\n").strip()


def _allowed(schema: dict[str, Any]) -> str:
    """The values that a setting may have, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_allowed(option) for option in schema["anyOf"]))
    if "$ref" in schema:
        return f"section `{schema['$ref'].rsplit('/', 1)[1]}`"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any value"))
    if kind == "array" and "items" in schema:
        kind = f"list of {_allowed(schema['items'])}"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {_bound(schema[key])}" for key, sign in signs.items() if key in schema]
    return " ".join([kind, ", ".join(bounds)]).strip()


def _bound(number: float) -> str:
    """A bound; 2^63 in place of its 19 digits, which a narrow page cannot break."""
    return "2^63" if number == 2**63 else "2^63 - 1" if number == 2**63 - 1 else str(number)


def _rows(model: type[BaseModel], left_out: frozenset[str]) -> Iterator[str]:
    properties = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        if name in left_out:
            continue
        schema = properties[field.alias or name]
        default = "required"
        if not field.is_required():
            default = f"`{_in_yaml(field.get_default(call_default_factory=True))}`"
        meaning = " ".join((field.description or "").split())
        cells = (f"`{name}`", default, _allowed(schema), meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def _section(title: str, model: type[BaseModel], left_out: frozenset[str] = frozenset()) -> str:
    text = (model.__doc__ or "").partition(FIELDS)[0].strip()
    table = ["| setting | default | allowed | meaning |", "|---|---|---|---|", *_rows(model, left_out)]
    return "\n".join(
        [f"## {title}", "", text, "", '<div class="stacked" markdown>', "", *table, "", "</div>", ""]
    )


def settings_page() -> str:
    """Markdown of the page: a table per section and per decoder."""
    assert {"model", "group", "decode", "decisions"} == set(Config.model_fields), (
        "a new section of Config needs its table here"
    )
    parts = [
        HEAD,
        _section("model", ModelSettings),
        _section("group", GroupSettings),
        _section("group.scaling", ScalingSettings),
        _section("decisions", DecisionSettings),
        _section("decode, for every decoder", GenerationSettings),
    ]
    shared = frozenset(GenerationSettings.model_fields)
    parts += [_section(f"decode, for {name}", decoder.settings, shared) for name, decoder in DECODERS.items()]
    parts += [
        _section("server", ServeSettings),
        _section("server, an entry of models", ModelEntry),
        _section("server, http", HttpSettings),
    ]
    return "\n".join(parts)
