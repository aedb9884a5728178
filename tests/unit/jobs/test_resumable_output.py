"""What a job writes, and how a job that begins again goes on with it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cluster.batch.source import Source
from cluster.jobs.resumable_output import JobOutput, JobResult, JobSpec
from lopa_ray.errors import SettingsError


def rows(*indices: int) -> list[str]:
    return [json.dumps({"line": index}) for index in indices]


def spec(**changes: Any) -> JobSpec:
    values = {"input": {"sha256": "a"}, "raw": False, "model": {"path": "demo"}, "decode": {"seed": 0}}
    return {**values, **changes}


def test_a_job_that_begins_again_keeps_what_is_done_and_ends_in_order(folder: str) -> None:
    path = f"{folder}/results.jsonl"
    first = JobOutput(path, range(5))
    assert first.start_or_resume(spec(), 2) is None
    first.write_chunk(2, rows(4))
    first.write_chunk(0, rows(0, 1))
    second = JobOutput(path, range(5))
    # Another run may want chunks of another size; those that are there decide.
    assert second.start_or_resume(spec(), 3) is None
    assert (sorted(second.chunk_files), second.chunk_size) == ([0, 2], 2)
    second.write_chunk(1, ['{"line": 2}', '{"line": 3, "error": "no"}'])
    assert second.merge_parts() == JobResult(5, 1)
    with fsspec.open(path, "rt") as file:
        assert [json.loads(line)["line"] for line in file] == [0, 1, 2, 3, 4]
    file_system, base = fsspec.core.url_to_fs(path)
    assert not file_system.exists(f"{base}.parts") and not file_system.exists(f"{base}.tmp")
    assert JobOutput(path, range(5)).start_or_resume(spec(), 2) == JobResult(5, 1)


def test_what_was_cut_off_while_it_was_written_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    output = JobOutput(str(path), range(2))
    output.start_or_resume(spec(), 1)
    output.write_chunk(0, rows(0))
    (tmp_path / "results.jsonl.parts" / "part-000001.jsonl.tmp").write_text('{"li')
    (tmp_path / "results.jsonl.tmp").write_text('{"li')
    again = JobOutput(str(path), range(2))
    again.start_or_resume(spec(), 1)
    assert list(again.chunk_files) == [0]
    again.write_chunk(1, rows(1))
    assert again.merge_parts() == JobResult(2, 0)


def test_a_kill_between_the_last_two_steps_of_the_end_is_made_good(tmp_path: Path) -> None:
    """The result is there, but nothing says so yet: it is joined again, from parts that are still there."""
    path = tmp_path / "results.jsonl"
    output = JobOutput(str(path), range(1))
    output.start_or_resume(spec(), 1)
    output.write_chunk(0, rows(0))
    path.write_text("from before")
    again = JobOutput(str(path), range(1))
    assert again.start_or_resume(spec(), 1) is None
    assert again.merge_parts() == JobResult(1, 0)
    assert path.read_text() == '{"line": 0}\n'


def test_a_damaged_part_is_decoded_again(tmp_path: Path) -> None:
    output = JobOutput(str(tmp_path / "results.jsonl"), range(2))
    output.start_or_resume(spec(), 2)
    output.write_chunk(0, rows(0, 1))
    part = tmp_path / "results.jsonl.parts" / "part-000000.jsonl"
    part.write_text('{"line": 0}\n{"line"')
    with pytest.raises(SettingsError, match=r"part-000000.*submit the job again"):
        output.merge_parts()
    assert not part.exists() and not (tmp_path / "results.jsonl").exists()


def finished(path: Path, count: int) -> JobResult | None:
    """The result that a job of 2 lines per chunk finds at its beginning."""
    return JobOutput(str(path), range(count)).start_or_resume(spec(), 2)


def openai_row(line: int) -> str:
    row = {"id": f"batch_req_{line}", "custom_id": "x", "response": {"status_code": 200}, "error": None}
    return json.dumps(row)


def finish(path: Path) -> list[str]:
    """A finished output with 5 rows, the last of which is one of OpenAI's."""
    output = JobOutput(str(path), range(5))
    assert output.start_or_resume(spec(), 2) is None
    written = [*rows(0, 1, 2), '{"line": 3, "error": "no"}', openai_row(4)]
    for index in range(3):
        output.write_chunk(index, written[2 * index : 2 * index + 2])
    assert output.merge_parts() == JobResult(5, 1)
    return written


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda rows: rows[:4], [0, 1]),
        (lambda rows: [*rows[:4], rows[4][:-3]], [0, 1]),
        (lambda rows: [*rows[:4], rows[4].rstrip()], [0, 1]),
        (lambda rows: rows[1:], [1, 2]),
        (lambda rows: [*rows[:2], rows[3], rows[2], rows[4]], [0, 2]),
        (lambda rows: [*rows[:3], "[3]\n", rows[4]], [0, 2]),
        (lambda rows: [*rows, rows[0]], [0, 1, 2]),
    ],
)
def test_what_a_finished_output_lacks_is_decoded_again(
    tmp_path: Path, damage: Callable[[list[str]], list[str]], left: list[int]
) -> None:
    path = tmp_path / "results.jsonl"
    written = finish(path)
    whole = path.read_text()
    assert finished(path, 5) == JobResult(5, 1)
    path.write_text("".join(damage(whole.splitlines(keepends=True))))
    again = JobOutput(str(path), range(5))
    assert again.start_or_resume(spec(), 2) is None
    assert again.damaged == [str(path)] and sorted(again.chunk_files) == left
    for index in {0, 1, 2} - {*left}:
        again.write_chunk(index, written[2 * index : 2 * index + 2])
    assert again.merge_parts() == JobResult(5, 1)
    assert path.read_text() == whole and finished(path, 5) == JobResult(5, 1)


@pytest.mark.parametrize(("ending", "left"), [("gz", [0, 1, 2]), ("zip", [])])
def test_a_compressed_output_that_is_cut_is_completed(tmp_path: Path, ending: str, left: list[int]) -> None:
    path = tmp_path / f"results.jsonl.{ending}"
    written = finish(path)
    with fsspec.open(str(path), "rt", compression="infer") as file:
        assert file.read().splitlines() == written
    assert finished(path, 5) == JobResult(5, 1)
    path.write_bytes(path.read_bytes()[:-8])
    again = JobOutput(str(path), range(5))
    assert again.start_or_resume(spec(), 2) is None and again.damaged == [str(path)]
    assert sorted(again.chunk_files) == left
    for index in {0, 1, 2} - {*left}:
        again.write_chunk(index, written[2 * index : 2 * index + 2])
    assert again.merge_parts() == JobResult(5, 1)


def zipped(change: Callable[[bytearray], Any], name: str = "a.jsonl") -> bytes:
    """A zip of one file, with other bytes than it was written with."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        if name:
            file.writestr(name, "12345")
    content = bytearray(buffer.getvalue())
    change(content)
    return bytes(content)


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("gz", b"text"),
        ("bz2", b"text"),
        ("xz", b"text"),
        ("zst", b"text"),
        ("zip", zipped(lambda content: content.__setitem__(38, 0))),  # a byte of the file
        ("zip", zipped(lambda content: content.__setitem__(content.rindex(b"PK\1\2") + 8, 1))),  # a password
        ("zip", zipped(lambda _: None, "")),  # has no file
    ],
)
def test_a_compressed_file_with_other_bytes_is_named(tmp_path: Path, ending: str, content: bytes) -> None:
    path = tmp_path / f"results.jsonl.{ending}"
    finish(path)
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"--output: .*results.jsonl.{ending} is damaged .*remove it"):
        finished(path, 5)
    with pytest.raises(
        SettingsError, match=rf"--input: cannot use .*results.jsonl.{ending}: DamagedFileError"
    ):
        Source(str(path)).summarize()


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        ('{"line": 0}\n{"line": 1}', True),  # only the end of its last line is missing
        ('{"line": 0}\n{"line": 1', False),
        ('{"line": 2}\n{"line": 3}\n', False),
    ],
)
def test_parts_are_checked_before_a_job_goes_on(tmp_path: Path, content: str, whole: bool) -> None:
    path = tmp_path / "results.jsonl"
    JobOutput(str(path), range(4)).start_or_resume(spec(), 2)
    part = tmp_path / "results.jsonl.parts" / "part-000000.jsonl"
    part.write_text(content)
    output = JobOutput(str(path), range(4))
    assert output.start_or_resume(spec(), 2) is None
    assert (0 in output.chunk_files, output.damaged) == (whole, [] if whole else [str(part)])
    output.write_chunk(1, rows(2, 3))
    if not whole:
        output.write_chunk(0, rows(0, 1))
    assert output.merge_parts() == JobResult(4, 0)
    assert path.read_text().splitlines() == rows(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": {"sha256": "b"}}, "another input.sha256 .'a', now 'b'"),
        ({"decode": {"seed": 1}}, "another decode.seed .0, now 1"),
        ({"decisions": {"rotations": 2}}, "another decisions .null, now"),
        ({"raw": True}, "another raw .false, now true"),
    ],
)
def test_another_job_does_not_mix_its_results_in(folder: str, changes: dict[str, Any], message: str) -> None:
    JobOutput(f"{folder}/results.jsonl", range(5)).start_or_resume(spec(), 2)
    with pytest.raises(SettingsError, match=message):
        JobOutput(f"{folder}/results.jsonl", range(5)).start_or_resume(spec(**changes), 2)


@pytest.mark.parametrize(
    "content",
    [
        '{"spec": {"input": {}}, "chunk_size": 2}',
        '{"spec": {}, "chunk_size": 2, "result": null}',
        '{"spec": {"input": {}}, "chunk_size": 2, "result": {"rows": 5}}',
        '{"spec": ',
        "[]",
    ],
)
def test_a_state_file_that_is_old_or_damaged_is_named(tmp_path: Path, content: str) -> None:
    state = tmp_path / "results.jsonl.job.json"
    state.write_text(content)
    with pytest.raises(
        SettingsError, match=r"results\.jsonl\.job\.json is damaged.*choose another --output, or remove"
    ):
        JobOutput(str(tmp_path / "results.jsonl"), range(2)).start_or_resume(spec(), 2)
    assert state.read_text() == content, "the file was changed"


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("mine")
    with pytest.raises(SettingsError, match="exists, and no job"):
        JobOutput(str(tmp_path / "results.jsonl"), range(2)).start_or_resume(spec(), 2)
