"""Prompts as lm-evaluation-harness makes them of its own task files, for rows at hand."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lm_eval.tasks
import pytest
import yaml
from datasets import Dataset, DatasetDict
from lm_eval.api.task import ConfigurableTask


def harness_task(
    monkeypatch: pytest.MonkeyPatch, folder: str, name: str, rows: Sequence[Mapping[str, Any]]
) -> ConfigurableTask:
    """A task of the harness over `rows` in place of its data set, without the metric that executes code."""
    tasks = Path(lm_eval.tasks.__file__).parent / folder
    config = _load(tasks / f"{name}.yaml")
    # The metric of these tasks is downloaded, and executes code, when their functions are imported.
    metric = SimpleNamespace(compute=lambda **_: None)
    monkeypatch.setitem(__import__("sys").modules, "evaluate", SimpleNamespace(load=lambda _: metric))
    spec = importlib.util.spec_from_file_location("harness_utils", tasks / "utils.py")
    assert spec is not None and spec.loader is not None
    utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils)
    for key in ("metric_list", "filter_list", "unsafe_code", "dataset_path", "dataset_name"):
        config.pop(key, None)
    if "fewshot_config" in config:
        config["fewshot_config"]["samples"] = utils.list_fewshot_samples()
    config["custom_dataset"] = lambda **_: DatasetDict(test=Dataset.from_list([dict(row) for row in rows]))
    config["metric_list"] = [{"metric": "bypass"}]
    return ConfigurableTask(config=config)


def chat_of(task: ConfigurableTask, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages that the harness hands to a chat template."""

    def render(messages: list[dict[str, str]], **_: Any) -> str:
        return json.dumps(messages)

    context = task.fewshot_context(
        dict(row),
        task.config.num_fewshot,
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        chat_template=render,
        gen_prefix=task.doc_to_prefix(dict(row)),
    )
    assert isinstance(context, str)
    messages: list[dict[str, str]] = json.loads(context)
    return messages


def _load(file: Path) -> dict[str, Any]:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))  # type: ignore[no-untyped-call]
    config: dict[str, Any] = yaml.load(file.read_text(), Loader)
    if "include" in config:
        config = {**_load(file.parent / config.pop("include")), **config}
    return config
