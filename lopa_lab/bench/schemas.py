"""`lopa bench schemas`: which JSON schemas of a folder structured output accepts, and what its answers may then be."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lopa_lab.bench.measurements import Measurements, Row
from lopa_ray.constraints.automaton_operations import accepts
from lopa_ray.constraints.json_schema import schema_automaton
from lopa_ray.engine.compile_process import CompileProcess
from lopa_ray.errors import SettingsError
from lopa_ray.text_input import read_text

ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of one schema."""

    states: int
    seconds: float
    tests: tuple[tuple[bool, bool], ...]
    """For each test of the schema: whether its value is valid, and whether it may be an answer."""


class _SchemaChecker:
    """Its calls run in a process with limits, as on a server."""

    def check(self, argument: tuple[str, list[tuple[Any, bool]]]) -> _Outcome:
        """A schema as JSON text, and values, each with whether it is valid under it. Raises SettingsError."""
        text, tests = argument
        began = time.process_time()
        automaton = schema_automaton(text)
        seconds = time.process_time() - began
        kept = tuple(
            (valid, accepts(automaton, json.dumps(value, ensure_ascii=False).encode()))
            for value, valid in tests
        )
        return _Outcome(len(automaton.transitions), seconds, kept)


@dataclass(slots=True)
class _Tally:
    """Of the schemas of one folder with the same outcome."""

    outcomes: list[_Outcome] = field(default_factory=list)
    refused: int = 0

    def row(self, folder: str, outcome: str, total: int) -> Row:
        count = len(self.outcomes) + self.refused
        tests = [test for one in self.outcomes for test in one.tests]
        return {
            "folder": folder,
            "outcome": outcome,
            "schemas": count,
            "share %": 100 * count / total,
            "valid possible": sum(valid and possible for valid, possible in tests),
            "valid impossible": sum(valid and not possible for valid, possible in tests),
            "invalid refused": sum(not valid and not possible for valid, possible in tests),
            "invalid possible": sum(not valid and possible for valid, possible in tests),
            "states max": max((one.states for one in self.outcomes), default=None),
            "compile max s": max((one.seconds for one in self.outcomes), default=None),
        }


def measure_schemas(folder: Path, limit_s: float) -> Measurements:
    """All JSON files in `folder` and below: schemas, or objects with `schema` and `tests` (`data`, `valid`).

    `limit_s`: processor time for each, in seconds. Raises SettingsError if there are none.
    """
    tallies: dict[str, dict[str, _Tally]] = defaultdict(lambda: defaultdict(_Tally))
    process = CompileProcess(_SchemaChecker())
    try:
        for name, schema, tests in _read(folder):
            if not process.alive:
                process.close()
                process = CompileProcess(_SchemaChecker())
            try:
                outcome = process.call("check", (json.dumps(schema), tests), limit_s)
                tallies[name][ACCEPTED].outcomes.append(outcome)
            except SettingsError as error:
                tallies[name][f"refused: {refusal_reason(str(error))}"].refused += 1
    finally:
        process.close()
    if not tallies:
        raise SettingsError(f"{folder}: it has no JSON files with schemas; name another folder")
    rows = []
    for name, found in sorted(tallies.items()):
        total = sum(len(tally.outcomes) + tally.refused for tally in found.values())
        ordered = sorted(found, key=lambda outcome: (outcome != ACCEPTED, -found[outcome].refused, outcome))
        rows += [found[outcome].row(name, outcome, total) for outcome in ordered]
    return Measurements(
        ("folder", "outcome"),
        rows,
        f"Each schema is translated in a process of its own within {limit_s:g} s of processor time. Tests are values "
        "that come with a schema: an invalid one must not be a possible answer, and a valid one may be impossible, "
        "since answers are a part of the valid texts (docs/structured_output.md).",
    )


def _read(folder: Path) -> Iterator[tuple[str, Any, list[tuple[Any, bool]]]]:
    """The folder of each file, the schema in it, and its tests."""
    for path in sorted(folder.rglob("*.json")):
        try:
            found = json.loads(read_text(path))
        except ValueError as error:
            raise SettingsError(f"{path}: it is no JSON ({error}); correct it or take it away") from None
        tests: list[Any] = []
        if isinstance(found, dict) and isinstance(found.get("tests"), list) and "schema" in found:
            found, tests = found["schema"], found["tests"]
        yield (
            str(path.parent.relative_to(folder)),
            found,
            [(test["data"], bool(test["valid"])) for test in tests],
        )


def refusal_reason(message: str) -> str:
    """The keyword that an error about a schema names, or what it says instead."""
    text = message.partition(": ")[2]
    if "too large" in message or "too much" in message:
        return "too large"
    named = re.match(r"keyword ([$\w]+)|([$\w]+): ", text)
    return next(filter(None, named.groups())) if named else re.split("[,;(]", text)[0].strip()
