"""Grafana's own classes of a dashboard read the one that ships, and know every field of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from support.paths import ROOT

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        find_spec("grafana_foundation_sdk") is None, reason="grafana-foundation-sdk is not installed"
    ),
]

UNKNOWN_TO_THE_CLASSES = {"/templating/list/1/definition"}
"""What Grafana itself writes beside the query of a variable, to show it in its editor."""


def differences(ours: Any, read: Any, path: str = "") -> Iterator[str]:
    """Where what was read lacks or changes something of ours."""
    if isinstance(ours, dict):
        for name, value in ours.items():
            if not isinstance(read, dict) or name not in read:
                yield f"{path}/{name}"
            else:
                yield from differences(value, read[name], f"{path}/{name}")
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for index, (value, of_read) in enumerate(zip(ours, read, strict=True)):
            yield from differences(value, of_read, f"{path}/{index}")
    elif ours != read:
        yield path


def test_the_dashboard_is_one_for_grafanas_own_classes() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    ours = json.loads((ROOT / "configs" / "monitoring" / "grafana.json").read_text(encoding="utf-8"))
    read = json.loads(json.dumps(Dashboard.from_json(ours), cls=JSONEncoder))
    assert set(differences(ours, read)) == UNKNOWN_TO_THE_CLASSES
    ours["panels"][0]["titel"] = "a field that there is not"
    misspelt = json.loads(json.dumps(Dashboard.from_json(ours), cls=JSONEncoder))
    assert "/panels/0/titel" in set(differences(ours, misspelt))
