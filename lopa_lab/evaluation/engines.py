"""Turns `--model_args` of lm-evaluation-harness into a configuration and groups, and hands requests to groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

from cluster.batch.open_engine import open_engine
from cluster.command_line.options import SETTINGS
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError


def config_of(source: str, arguments: dict[str, Any]) -> Config:
    """The configuration `source`, with model arguments on top.

    An argument is an option of the command line (`model`, `workers`, `num_branches` …), a setting with its section
    (`model.max_num_seqs`), or the name of a setting that only one section has. Raises SettingsError.
    """
    overrides: dict[str, dict[str, Any]] = {}
    for name, value in arguments.items():
        section, _, key = _full_name(name).partition(".")
        overrides.setdefault(section, {})[key] = value
    unknown = sorted(set(overrides) - set(Config.model_fields))
    if unknown:
        raise SettingsError(f"unknown section {unknown[0]!r}; allowed: {', '.join(Config.model_fields)}")
    return Config.load(source, overrides)


def _full_name(name: str) -> str:
    """A setting's name with the section that has it."""
    if "." in name:
        return name
    if name in SETTINGS:
        return SETTINGS[name]
    sections = {"model": set(ModelSettings.model_fields), "group": set(GroupSettings.model_fields)}
    sections["decode"] = {field for decoder in DECODERS.values() for field in decoder.settings.model_fields}
    having = [section for section, fields in sections.items() if name in fields]
    if len(having) != 1:
        raise SettingsError(
            f"model_args: got {name!r}; allowed: config, local, groups, mc_num, check_greedy, "
            f"{', '.join(SETTINGS)}, and any setting as SECTION.KEY, as in decode.block_size=16"
        )
    return f"{having[0]}.{name}"


class Groups:
    """The groups of a configuration. They start when the first group is used: the harness makes the model before it
    loads the tasks' data, and a group for data that cannot be loaded would start for nothing."""

    def __init__(self, config: Config, count: int, *, local: bool) -> None:
        self._config, self._count, self._local = config, count, local
        self._engines: list[Engine] = []
        self._opened = ExitStack()

    @property
    def engines(self) -> list[Engine]:
        """All of them. Raises what starting an engine raises."""
        if not self._engines:
            with ExitStack() as opened:
                engines = [
                    opened.enter_context(open_engine(self._config, local=self._local))
                    for _ in range(self._count)
                ]
                self._opened = opened.pop_all()
            self._engines = engines
        return self._engines

    def close(self) -> None:
        """End the groups that have started."""
        self._opened.close()


Answer = TypeVar("Answer")


def on_groups(
    engines: Sequence[Engine], requests: int, run: Callable[[Engine, range], Iterator[tuple[int, Answer]]]
) -> Iterator[tuple[int, Answer]]:
    """Yield all answers of `run`, which is called for each group with every n-th request.

    Answers of a single group are yielded as they come, answers of several groups when a group has finished.
    """
    count = len(engines)
    if count == 1:
        yield from run(engines[0], range(requests))
        return
    parts = [range(first, requests, count) for first in range(count)]
    with ThreadPoolExecutor(count) as pool:
        for answers in pool.map(lambda engine, part: list(run(engine, part)), engines, parts):
            yield from answers
