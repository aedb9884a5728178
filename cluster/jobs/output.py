"""Output: the results of a job, kept so that a job that was killed can go on.

Beside OUTPUT lie OUTPUT.job.json, which says what it is made of, and, until all is done,
OUTPUT.parts with the results of each chunk. Every file has its name only once it is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.jobs.storage import open_url, reaching, write_whole
from lopa_ray.errors import SettingsError

PART = re.compile(r"part-(\d{6,})\.jsonl$")

PARTS_AT_ONCE = 32
"""Parts that are fetched together: object stores answer many at a time."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the results follow from. A job that goes on must have the same."""

    input_sha256: str
    lines: int
    raw: bool
    model: dict[str, Any]
    decode: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished output."""

    lines: int
    failed: int


class Output:
    """The files of one job's output."""

    def __init__(self, url: str) -> None:
        """Raises SettingsError if nothing can be written there."""
        self._url = url
        with reaching("--output", url):
            self._file_system, self._path = open_url(url)
        self._parts = f"{self._path}.parts"
        self._note = f"{self._path}.job.json"
        self.chunk_size = 0
        self.done: dict[int, str] = {}
        """Chunks that need no more work, and where their results lie."""

    def begin(self, recipe: Recipe, chunk_size: int) -> Result | None:
        """Take up what a job with this recipe has left here; the result, if it has finished.

        `chunk_size` counts for a job that begins anew. Raises SettingsError if another job's files lie
        here.
        """
        with reaching("--output", self._url):
            self._file_system.invalidate_cache()
            note = self._read_note()
            if note is None:
                if self._file_system.exists(self._path):
                    raise SettingsError(
                        f"--output: {self._url} exists, and no job of this kind wrote it; choose another name"
                    )
                self._file_system.makedirs(self._parts, exist_ok=True)
                note = {"recipe": asdict(recipe), "chunk_size": chunk_size, "result": None}
                self._write_note(note)
            self._compare(note["recipe"], recipe)
            self.chunk_size = note["chunk_size"]
            if note["result"] is not None and self._file_system.exists(self._path):
                return Result(**note["result"])
            self._file_system.makedirs(self._parts, exist_ok=True)
            self.done = {
                int(match[1]): name for name in self._names_of_parts() if (match := PART.search(name))
            }
        return None

    def _names_of_parts(self) -> list[str]:
        try:
            names: list[str] = self._file_system.ls(self._parts, detail=False)
        except FileNotFoundError:  # an object store has no empty folders
            return []
        return names

    def _read_note(self) -> dict[str, Any] | None:
        if not self._file_system.exists(self._note):
            return None
        note: dict[str, Any] = json.loads(self._file_system.cat_file(self._note))
        return note

    def _write_note(self, note: dict[str, Any]) -> None:
        write_whole(self._file_system, self._note, iter([json.dumps(note, indent=1).encode()]))

    def _compare(self, before: dict[str, Any], recipe: Recipe) -> None:
        now = json.loads(json.dumps(asdict(recipe)))
        changed = [name for name in now if before.get(name) != now[name]]
        if not changed:
            return
        what = "input" if changed[0] in ("input_sha256", "lines") else changed[0]
        raise SettingsError(
            f"--output: {self._url} was begun with another {what} ({_difference(before, now, changed[0])}); put "
            f"that back to go on with it, choose another --output, or remove {self._url}.job.json, .parts and "
            "the file itself to begin anew"
        )

    def keep(self, index: int, rows: Sequence[str]) -> None:
        """Write a chunk's results. Raises SettingsError."""
        name = f"{self._parts}/part-{index:06}.jsonl"
        with reaching("--output", self._url):
            write_whole(self._file_system, name, (f"{row}\n".encode() for row in rows))
        self.done[index] = name

    def finish(self, lines: int) -> Result:
        """Join all parts, in order, and remove them. Raises SettingsError if a part is damaged."""
        failed = 0

        def pieces() -> Iterator[bytes]:
            nonlocal failed
            found = 0
            for index, content in self._contents():
                try:
                    rows = [json.loads(line) for line in content.splitlines()]
                except ValueError:
                    rows = []
                expected = min(self.chunk_size, lines - index * self.chunk_size)
                if len(rows) != expected:
                    self._file_system.rm_file(self.done[index])
                    raise SettingsError(
                        f"--output: {self.done[index]} has {len(rows)} of its {expected} results, so it was "
                        "removed; submit the job again to decode them anew"
                    )
                found += len(rows)
                failed += sum("error" in row for row in rows)
                yield content

        with reaching("--output", self._url):
            write_whole(self._file_system, self._path, pieces())
            note = self._read_note() or {}
            self._write_note({**note, "result": asdict(Result(lines, failed))})
            self._file_system.rm(self._parts, recursive=True)
        return Result(lines, failed)

    def _contents(self) -> Iterator[tuple[int, bytes]]:
        order = sorted(self.done)
        for first in range(0, len(order), PARTS_AT_ONCE):
            some = order[first : first + PARTS_AT_ONCE]
            # A list is fetched concurrently where the file system can; keys come back in its own spelling.
            contents = self._file_system.cat([self.done[index] for index in some])
            yield from zip(some, (contents[self.done[index]] for index in some), strict=True)


def _difference(before: dict[str, Any], now: dict[str, Any], name: str) -> str:
    old, new = before.get(name), now[name]
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
        return f"{key}: {old.get(key)!r}, now {new.get(key)!r}"
    return f"{name}: {str(old)[:12]}, now {str(new)[:12]}"
