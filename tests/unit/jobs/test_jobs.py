"""What a job reads, writes and logs, without Ray."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import math
import shutil
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from cluster.batch.lines import DecisionLine, LineResult, PromptLine, failed_line
from cluster.batch.source import InputSummary, Source
from cluster.jobs.__main__ import app
from cluster.jobs.group import ChunkResult
from cluster.jobs.job import SPEED_SETTINGS, job_spec
from cluster.jobs.progress import JobProgress
from cluster.jobs.resumable_output import JobOutput, JobResult, JobSpec
from lopa_ray.config.model_settings import DEMO_MODEL, ModelSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import resolve_config
from lopa_ray.errors import SettingsError
from support.paths import MODELS

LINES = ['{"prompt": "one", "id": 7}', "", "nonsense", '{"token_ids": [1, 2]}', '"five"']


def rows(*indices: int) -> list[str]:
    return [json.dumps({"line": index}) for index in indices]


def spec(**changes: Any) -> JobSpec:
    values = {"input": {"sha256": "a"}, "raw": False, "model": {"path": "demo"}, "decode": {"seed": 0}}
    return {**values, **changes}


class Bucket(MemoryFileSystem):
    """Like an object store: there are no folders, and so no empty ones either."""

    protocol = "bucket"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Nothing to do."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing to do."""


fsspec.register_implementation("bucket", Bucket)


@pytest.fixture(params=["local", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Somewhere to write: with renames, and, like an object store, without."""
    return str(tmp_path) if request.param == "local" else f"bucket://{tmp_path.name}"


# Reading


def write_plain(folder: str) -> str:
    with fsspec.open(f"{folder}/prompts.jsonl", "wb") as file:
        file.write(b"\xef\xbb\xbf" + "\n".join(LINES).encode())
    return f"{folder}/prompts.jsonl"


def write_compressed(folder: str) -> str:
    with fsspec.open(f"{folder}/prompts.jsonl.gz", "wb") as file:
        file.write(gzip.compress("\n".join(LINES).encode()))
    return f"{folder}/prompts.jsonl.gz"


@pytest.mark.parametrize("write", [write_plain, write_compressed])
def test_lines_keep_their_numbers_and_bad_ones_their_places(folder: str, write: Callable[[str], str]) -> None:
    source = Source(write(folder))
    assert source.summarize().numbers.tolist() == [1, 3, 4, 5]
    first, second = source.chunks(3)
    assert (first.index, second.index) == (0, 1)
    assert first.lines[0] == PromptLine(1, "one", 7)
    assert isinstance(first.lines[1], LineResult) and first.lines[1].line == 3
    assert first.lines[2:] + second.lines == (PromptLine(4, [1, 2]), PromptLine(5, "five"))


def test_parquet_rows_are_lines(folder: str) -> None:
    records = [
        {"id": 1, "prompt": "one", "settings": {"seed": 3, "max_new_tokens": None}},
        {"id": None, "messages": [{"role": "user", "content": "two"}]},
        {"id": 3},
    ]
    with fsspec.open(f"{folder}/prompts.parquet", "wb") as file:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
    source = Source(f"{folder}/prompts.parquet")
    assert source.summarize().numbers == range(1, 4)
    # The first record says which columns there are: messages is none of them.
    (chunk,) = source.chunks(10)
    assert chunk.lines[0] == PromptLine(1, "one", 1, {"seed": 3})
    assert isinstance(chunk.lines[1], LineResult) and "no prompt" in chunk.lines[1].error
    assert isinstance(chunk.lines[2], LineResult) and chunk.lines[2].row["id"] == 3


def test_parquet_with_other_columns_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["one"], "answer": ["1"]}), path)
    with pytest.raises(
        SettingsError, match=r"a column 'answer'; allowed: given_parts, id, input, messages, parse_special"
    ):
        Source(str(path)).summarize()


def test_parquet_rows_may_ask_questions(tmp_path: Path) -> None:
    """Fields that a question does not have are null in its row, because another question has them."""
    questions = [
        {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
        {
            "type": "choice",
            "name": "topic",
            "instructions": "What is it about?",
            "choices": [{"value": "bills"}, {"value": "other", "description": "Anything else."}],
        },
    ]
    path = tmp_path / "questions.parquet"
    records = [
        {"input": "Tom pays.", "questions": questions, "id": "a", "prompt": None},
        {"prompt": "Mia has 6 pens."},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    assert Source(str(path)).summarize().numbers == range(1, 3)
    decision, prompt = next(Source(str(path)).chunks(2)).lines
    assert decision == DecisionLine(1, {"input": "Tom pays.", "questions": questions}, "a")
    assert prompt == PromptLine(2, "Mia has 6 pens.")


def test_parquet_may_give_parts_of_answers(tmp_path: Path) -> None:
    """Fields that a part has not are null in a column of parts."""
    path = tmp_path / "prompts.parquet"
    parts = [{"text": "a", "hole": None}, {"text": "b", "hole": 3}]
    columns = {"prompt": ["one", "two"], "given_parts": [parts, None], "suffix": [None, "end"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    (chunk,) = Source(str(path)).chunks(8)
    settings = [line.settings for line in chunk.lines if isinstance(line, PromptLine)]
    assert settings == [{"given_parts": [{"text": "a"}, {"text": "b", "hole": 3}]}, {"suffix": "end"}]


def test_parquet_rows_that_json_cannot_say_have_no_result(tmp_path: Path) -> None:
    """Their ids would be in the results, which are JSON."""
    path = tmp_path / "prompts.parquet"
    for ids, said in ([math.nan, math.inf], "is not a JSON number"), ([datetime.now()] * 2, "datetime"):
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["one", "two"], "id": ids}), path)
        lines = list(Source(str(path)).lines())
        assert all(isinstance(line, LineResult) and said in line.error for line in lines) and len(lines) == 2


@pytest.mark.parametrize("cut", [slice(0, -9), slice(0, 30)])
def test_a_compressed_file_that_is_cut_is_named(tmp_path: Path, cut: slice) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(LINES).encode())[cut])
    with pytest.raises(SettingsError, match=r"--input: cannot use .*prompts.jsonl.gz: EOFError"):
        Source(str(path)).summarize()


def test_a_changed_byte_is_another_input(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(LINES))
    before = Source(str(path)).summarize()
    assert Source(str(path)).summarize() == before
    path.write_text("\n".join(LINES).replace("five", "Five"))
    assert Source(str(path)).summarize() != before


def test_the_same_bytes_under_another_name_are_another_input(tmp_path: Path) -> None:
    """What is read depends on the name, too."""
    plain, compressed = (tmp_path / name for name in ("prompts.txt", "prompts.txt.gz"))
    for path in (plain, compressed):
        path.write_bytes(gzip.compress(b"1"))
    first, second = (Source(str(path)).summarize() for path in (plain, compressed))
    assert (first.format, second.format) == ("plain", "gzip") and first.sha256 == second.sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "does not exist"),
        ("empty.jsonl", "\n\n", "has no prompts"),
        ("broken.parquet", "text", "cannot use"),
    ],
)
def test_inputs_that_cannot_be_read_are_named(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=rf"--input: .*{message}|--input: {path} {message}"):
        Source(str(path)).summarize()


# Writing


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


@pytest.mark.parametrize("content", ['{"line": 0}\n', '{"line": 0}\n{"line"'])
def test_a_damaged_part_is_decoded_again(tmp_path: Path, content: str) -> None:
    output = JobOutput(str(tmp_path / "results.jsonl"), range(2))
    output.start_or_resume(spec(), 2)
    output.write_chunk(0, rows(0, 1))
    part = tmp_path / "results.jsonl.parts" / "part-000000.jsonl"
    part.write_text(content)
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
        (lambda rows: rows[1:], [1, 2]),
        (lambda rows: [*rows[:2], rows[3], rows[2], rows[4]], [0, 2]),
        (lambda rows: [rows[0], "\0" * 20, *rows[2:]], [1, 2]),
        (lambda rows: [*rows[:3], "[3]", rows[4]], [0, 2]),
        (lambda rows: [*rows, rows[0]], [0, 1, 2]),
        (lambda rows: [*rows, "{}"], [0, 1, 2]),
        (lambda rows: [], []),
    ],
)
def test_what_a_finished_output_lacks_is_decoded_again(
    tmp_path: Path, damage: Callable[[list[str]], list[str]], left: list[int]
) -> None:
    path = tmp_path / "results.jsonl"
    written = finish(path)
    whole = path.read_text()
    assert finished(path, 5) == JobResult(5, 1)
    path.write_text("\n".join(damage(written)) + "\n")
    again = JobOutput(str(path), range(5))
    assert again.start_or_resume(spec(), 2) is None
    assert again.damaged == [str(path)] and sorted(again.chunk_files) == left
    for index in {0, 1, 2} - {*left}:
        again.write_chunk(index, written[2 * index : 2 * index + 2])
    assert again.merge_parts() == JobResult(5, 1)
    assert path.read_text() == whole and finished(path, 5) == JobResult(5, 1)


def test_a_compressed_output_that_is_cut_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl.gz"
    written = finish(path)
    assert gzip.decompress(path.read_bytes()).decode().splitlines() == written
    assert finished(path, 5) == JobResult(5, 1)
    path.write_bytes(gzip.compress("\n".join(written).encode() + b"\n")[:-8])
    again = JobOutput(str(path), range(5))
    assert again.start_or_resume(spec(), 2) is None and sorted(again.chunk_files) == [0, 1, 2]
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
        ("gz", gzip.compress(b"{}", mtime=0)[:-8] + b"\0" * 8),
        ("bz2", b"text"),
        ("bz2", bz2.compress(b"{}")[:12] + b"\0" * 30),
        ("xz", b"text"),
        ("zst", b"text"),
        ("zip", zipped(lambda content: content.__setitem__(38, 0))),  # a byte of the file
        (
            "zip",
            zipped(lambda content: content.__setitem__(content.rindex(b"PK\1\2") + 8, 1)),
        ),  # has a password
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
        ('{"line": 0}\n', False),
        ('{"line": 0}\n{"line": 0}\n', False),
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
        '{"fingerprint": "abc", "chunk_size": 2, "result": null}',
        '{"spec": {}, "chunk_size": 2}',
        '{"spec": {}, "chunk_size": 2, "result": {"rows": 5}}',
        '{"spec": ',
        "[]",
        "\xff",
    ],
)
def test_a_state_file_that_is_old_or_damaged_is_named(folder: str, content: str) -> None:
    path = f"{folder}/results.jsonl"
    with fsspec.open(f"{path}.job.json", "wb") as file:
        file.write(content.encode("latin-1"))
    with pytest.raises(
        SettingsError, match=r"results\.jsonl\.job\.json is damaged.*choose another --output, or remove"
    ):
        JobOutput(path, range(2)).start_or_resume(spec(), 2)
    with fsspec.open(f"{path}.job.json", "rb") as file:
        assert file.read() == content.encode("latin-1"), "the file was changed"


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("mine")
    with pytest.raises(SettingsError, match="exists, and no job"):
        JobOutput(str(tmp_path / "results.jsonl"), range(2)).start_or_resume(spec(), 2)


RECORDED = {
    "group": {
        "tensor_parallel_size",
        "expert_parallel",
        "num_cpus",
    },
    "model": {*ModelSettings.model_fields} - {"max_num_seqs"},
}
"""Settings on which results depend, of the sections that have others, too."""


def test_all_that_results_depend_on_is_in_the_record() -> None:
    """A new setting has to be in one of the two lists."""
    config = Config.load("demo", {"decisions": {"rotations": 3}})
    record = job_spec(config, InputSummary("sum", "plain", [1, 3]), raw=True)
    assert (record["input"], record["raw"]) == ({"sha256": "sum", "format": "plain", "lines": 2}, True)
    for section, settings in config:
        recorded = RECORDED.get(section, {*type(settings).model_fields})
        assert {*record[section]} == recorded
        assert {*type(settings).model_fields} == recorded | SPEED_SETTINGS.get(section, set())
        assert not recorded & SPEED_SETTINGS.get(section, set())
    assert record["decisions"]["rotations"] == 3


def test_a_job_that_goes_on_has_the_same_sampling() -> None:
    """Whether a setting was written down, or comes from the checkpoint."""
    open_, said = (
        resolve_config(Config.parse({"model": {"path": str(MODELS / "sdar-tiny-3l")}, "decode": decode}))
        for decode in ({}, {"temperature": 0.0, "top_p": None, "top_k": None})
    )
    specs = [job_spec(config, InputSummary("", "plain", [1]), raw=False) for config in (open_, said)]
    assert specs[0]["decode"]["temperature"] == 0.6 and specs[1]["decode"]["temperature"] == 0.0


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("setting", ["path", "lora"])
def test_a_job_knows_a_checkpoint_by_its_files(tmp_path: Path, name: str, setting: str) -> None:
    here, copy = (shutil.copytree(DEMO_MODEL, tmp_path / folder) for folder in ("here", "copy"))

    def record(folder: Path) -> JobSpec:
        config = Config.load("demo", {"model": {setting: str(folder)}})
        return job_spec(config, InputSummary("", "plain", [1]), raw=False)

    before = record(here)["checkpoint"]
    assert record(copy)["checkpoint"] == before
    content = (here / name).read_bytes()
    (here / name).write_bytes(content[:-1] + b" ")
    (here / "README.md").write_text("says nothing of results")
    assert record(here)["checkpoint"] != before
    (here / name).write_bytes(content)
    assert record(here)["checkpoint"] == before


def test_a_commit_on_the_hub_stands_for_its_files() -> None:
    config = Config.load("demo", {"model": {"path": f"org/name@{'0' * 40}"}})
    assert job_spec(config, InputSummary("", "plain", [1]), raw=False)["checkpoint"] is None


# Logging


def test_progress_counts_what_was_done_before(capsys: pytest.CaptureFixture[str]) -> None:
    progress = JobProgress(5, 2, {0, 2})
    failure = failed_line(4, "too long")
    progress.report(1)  # too soon
    progress.add(ChunkResult(("{}", "{}"), (failure,), 10, 2))
    progress.report(1)
    logged = capsys.readouterr().out
    assert "3 of 5 lines are done already" in logged
    assert "line 4: too long" in logged
    assert (
        "5 of 5 lines (100.0 %)" in logged
        and "TPF 5.00, 1 failed, 1 groups at work" in logged
        and logged.count("of 5 lines (") == 1
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "results.jsonl"], "an absolute path or a URL"),
        (["--output", "/x/results.jsonl", "--groups", "0"], "--groups"),
        (["--output", "/x/results.jsonl", "--set", "decode.num_branches=0"], "num_branches"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["--input", "prompts.jsonl", *arguments])
    assert result.exit_code == 2 and message in result.output
