"""The `lopa` command as a shell user sees it: output, files, exit statuses, error lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml
from typer.testing import CliRunner, Result

from cluster.cli import app
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.paths import GOLDEN

MODEL = str(GOLDEN / "models" / "dream-tiny-2l")
SMALL = ("--local", "--model", MODEL, "-n", "24", "--set", "decode.block_size=8")

torch.set_num_threads(1)


def lopa(*arguments: str, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*arguments: str, part: str) -> None:
    result = lopa(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert part in result.stderr
    assert not result.stdout


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def batch(
    tmp_path: Path, *lines: object, options: tuple[str, ...] = SMALL
) -> tuple[Result, list[dict[str, Any]]]:
    """Run lines (bytes as they are, all else as JSON) through --input; returns the results too."""
    data = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    (tmp_path / "in.jsonl").write_bytes(data)
    output = tmp_path / "out.jsonl"
    result = lopa("generate", *options, "--input", str(tmp_path / "in.jsonl"), "--output", str(output))
    assert not list(tmp_path.glob("*.part"))
    return result, objects(output.read_text())


# Many prompts


def test_results_come_in_input_order_as_the_engine_gives_them(tmp_path: Path) -> None:
    prompts = [[5, 6, 7], [9], [11, 12, 13, 14], [20, 3]]
    result, lines = batch(tmp_path, *[{"token_ids": ids, "id": f"p{at}"} for at, ids in enumerate(prompts)])
    assert result.exit_code == 0
    assert [line["id"] for line in lines] == ["p0", "p1", "p2", "p3"]
    decode = {"max_new_tokens": 24, "block_size": 8}
    engine = LocalEngine.from_config(Config.load("demo", {"model": {"path": MODEL}, "decode": decode}))
    for line, ids in zip(lines, prompts, strict=True):
        alone = engine.generate(ids)
        assert line["token_ids"] == alone.token_ids
        assert (line["steps"], line["forwards"], line["tokens"]) == (
            alone.steps,
            alone.forwards,
            alone.tokens,
        )
        assert line["tpf"] == pytest.approx(alone.tpf, abs=1e-4)
        assert line["finish_reason"] == alone.finish_reason
        assert line["prompt_tokens"] == len(ids)
        assert line["text"] is None
        assert line["tps"] > 0


def test_bad_lines_are_reported_at_their_place_and_do_not_stop_the_rest(tmp_path: Path) -> None:
    result, lines = batch(
        tmp_path,
        [1, 2, 3],
        b"{broken",
        b"",
        b'{"prompt": "\xff"}',
        {"token_ids": [1], "surprise": 1},
        {"token_ids": [1, 127], "id": 7},
        {"token_ids": [1], "prompt": [2]},
        {"token_ids": [1.5]},
        {"token_ids": [True]},
        {"token_ids": []},
        {"token_ids": [4000]},
        {"messages": [{"role": "user"}]},
        {"prompt": "text"},
        b'{"token_ids": [1], "id": NaN}',
        b'{"token_ids": [1], "settings": {"seed": 1, "seed": 2}}',
        {"token_ids": [1], "settings": {"num_branches": 0}},
        {"token_ids": [1], "settings": {"nonsense": 0}},
        {"token_ids": [1], "settings": {"max_new_tokens": 10**6}},
        {"token_ids": [1], "settings": 3},
        7,
        {"prompt": [1, 2, 3]},
    )
    assert result.exit_code == 1
    assert [line["line"] for line in lines] == [1, 2, *range(4, 22)]
    assert [line["line"] for line in lines if "error" not in line] == [1, 21]
    assert lines[0]["token_ids"] == lines[-1]["token_ids"]
    assert next(line for line in lines if line["line"] == 6)["id"] == 7
    for line in lines:
        if "error" in line:
            assert f"line {line['line']}: {line['error']}" in result.stderr
    assert not result.stdout


@pytest.mark.medium
def test_settings_of_a_line_go_on_top(tmp_path: Path) -> None:
    result, lines = batch(
        tmp_path,
        {"token_ids": [5, 6], "settings": {"max_new_tokens": 7, "ignore_eos": True}},
        {"token_ids": [5, 6], "settings": {"decoder": "d2f"}},
        {"token_ids": [5, 6], "settings": {"window_attention": "block_causal", "num_branches": 2}},
        {"token_ids": [5, 6], "settings": {"num_branches": "auto", "max_branches": 6}},
    )
    assert result.exit_code == 0
    assert lines[0]["tokens"] == len(lines[0]["token_ids"]) == 7
    assert [line["decoder"] for line in lines] == ["lopa", "d2f", "lopa", "lopa"]
    assert [line["num_branches"] for line in lines] == [4, 1, 2, "auto"]


@pytest.mark.parametrize(("text", "number"), [("auto", "auto"), ("3", 3)])
def test_branches_are_a_number_or_left_to_the_request(tmp_path: Path, text: str, number: object) -> None:
    _, lines = batch(tmp_path, [5, 6], options=(*SMALL, "-b", text))
    assert lines[0]["num_branches"] == number


def test_streams_from_stdin_to_stdout() -> None:
    result = lopa("generate", *SMALL, "--input", "-", stdin="[1, 2]\n\n{}\n")
    assert result.exit_code == 1
    good, bad = objects(result.stdout)
    assert good["tokens"] > 0
    assert bad["line"] == 3


def test_files_are_read_and_written_as_jobs_do(tmp_path: Path) -> None:
    gzipped, parquet, output = (tmp_path / name for name in ("in.jsonl.gz", "in.parquet", "out.jsonl.gz"))
    gzipped.write_bytes(gzip.compress(b"\xef\xbb\xbf[1, 2]\n\n{}\n"))
    pyarrow.parquet.write_table(pyarrow.table({"token_ids": [[1, 2]], "id": ["a"]}), parquet)
    assert lopa("generate", *SMALL, "-i", str(gzipped), "-o", str(output)).exit_code == 1
    good, bad = objects(gzip.decompress(output.read_bytes()).decode())
    assert good["tokens"] > 0 and bad["line"] == 3
    (row,) = objects(lopa("generate", *SMALL, "-i", str(parquet)).stdout)
    assert (row["id"], row["token_ids"]) == ("a", good["token_ids"])


def test_an_interrupted_run_leaves_no_file_that_looks_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "events", interrupted)
    (tmp_path / "in.jsonl").write_text("nonsense\n[1]\n")
    paths = ("--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl"))
    result = lopa("generate", *SMALL, *paths)
    assert result.exit_code == 130
    assert not (tmp_path / "out.jsonl").exists()
    assert [line["line"] for line in objects((tmp_path / "out.jsonl.part").read_text())] == [1]


def test_trace_has_every_step_of_every_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    _, lines = batch(tmp_path, [1, 2], [3], options=(*SMALL, "--trace", str(trace)))
    steps = objects(trace.read_text())
    for line in lines:
        mine = [step for step in steps if step["line"] == line["line"]]
        assert [step["step"] for step in mine] == list(range(1, line["steps"] + 1))
        assert sum(len(step["branches"]) for step in mine) == line["forwards"]
        assert mine[-1]["canvas"][: len(line["token_ids"])] == line["token_ids"]


# Usage and settings


@pytest.mark.medium
def test_mistakes_are_one_line_and_status_2(tmp_path: Path) -> None:
    refused("generate", *SMALL, "text", part="no tokenizer")
    refused("generate", "--local", "--workers", "2", "x", part="exclude")
    refused("generate", "--local", "--tensor-parallel-size", "2", "x", part="exclude")
    refused("generate", *SMALL, "--set", "decode.nope=1", "x", part="nope")
    refused("generate", *SMALL, "--set", "nope", "x", part="SECTION.KEY=VALUE")
    refused("generate", *SMALL, "--set", "nope.seed=1", "x", part="nope")
    refused("generate", *SMALL, "--set", "decode.seed={", "x", part="YAML")
    refused("generate", *SMALL, "--decoder", "d2f", "-b", "2", "x", part="num_branches")
    refused("generate", *SMALL, "-b", "-3", "x", part="num_branches: got -3; allowed: a whole number")
    refused("generate", *SMALL, "-b", "many", "x", part="got 'many'; allowed: a whole number from 1 to 1024")
    refused("generate", "--local", "--model", str(tmp_path / "absent"), "x", part="absent")
    refused("generate", *SMALL, "--input", str(tmp_path / "absent.jsonl"), part="absent.jsonl")
    refused("generate", *SMALL, "--input", "-", "x", part="--input")
    refused("generate", *SMALL, "--output", "o.jsonl", "x", part="--output")
    for option in ("device", "implementation"):
        options = ("--models", MODEL, f"--{option}", "x")
        refused("conformance", "absent.jsonl", *options, part=f"{option}: got 'x'")


@pytest.mark.medium
def test_the_table_under_an_answer_names_the_dtype() -> None:
    for options, shown in ((), "float32 on cpu"), (("--dtype", "bfloat16"), "bfloat16 on cpu,"):
        lines = lopa("generate", "--local", "-n", "24", *options, "2 + 2").stdout.splitlines()
        assert any(line.split()[:4] == ["dtype", *shown.split()] for line in lines)


def test_config_prints_yaml_that_loads_again(tmp_path: Path) -> None:
    result = lopa("config", "--set", "decode.seed=7", "--set", "group.resources={rack: 1.0}")
    assert result.exit_code == 0
    values = yaml.safe_load(result.stdout)
    assert (values["decode"]["seed"], values["group"]["resources"]) == (7, {"rack": 1.0})
    path = tmp_path / "again.yaml"
    path.write_text(result.stdout)
    assert lopa("config", "--config", str(path)).stdout == result.stdout


def test_a_model_that_has_a_preset_brings_it_where_no_other_is_named() -> None:
    def decoder(*arguments: str) -> str:
        values = yaml.safe_load(lopa("config", *arguments).stdout)
        return f"{values['decode']['decoder']} {values['model']['dtype']} {values['model']['path']}"

    named = ("--set", "model.path=smollm2")
    assert decoder(*named) == "self_speculation bfloat16 smollm2"
    assert decoder(*named, "--decoder", "nemotron") == "nemotron bfloat16 smollm2"
    assert decoder(*named, "--config", "demo") == "lopa auto smollm2"
    assert decoder() == decoder("--set", "model.path=demo") == "lopa auto demo"


def test_version_and_help() -> None:
    assert lopa("--version").stdout.startswith("lopa ")
    assert "conformance" in lopa("--help").stdout


# Conformance


@pytest.mark.medium
def test_conformance_reports_and_exits_by_the_verdicts(tmp_path: Path) -> None:
    rows = (GOLDEN / "lopa_cases.jsonl").read_text().splitlines()[:2]
    good, wrong = tmp_path / "good.jsonl", tmp_path / "wrong.jsonl"
    good.write_text(rows[0])
    changed = json.loads(rows[1])
    changed["tokens"][0] ^= 1
    wrong.write_text(json.dumps(changed))
    models = ("--models", str(GOLDEN / "models"))

    for implementation in ("auto", "transformers"):
        passed = lopa("conformance", str(good), *models, "--implementation", implementation)
        assert passed.exit_code == 0
        assert "1 passed, 0 differ, 0 not supported" in passed.stdout

    differs = lopa("conformance", str(good), str(wrong), *models, "--json")
    assert differs.exit_code == 1
    verdicts = {verdict["id"]: verdict for verdict in objects(differs.stdout)}
    assert verdicts[changed["id"]]["first"]["what"] == "tokens"
    assert "1 passed, 1 differ, 0 not supported" in differs.stderr


@pytest.mark.medium
def test_conformance_excuses_only_masks_in_the_prompt(tmp_path: Path) -> None:
    rows = objects((GOLDEN / "sdar_moe" / "sdar_moe_generate_cases.jsonl").read_text())
    masked = next(row for row in rows if 127 in row["prompt"])
    whole = min((row for row in rows if 127 not in row["prompt"]), key=lambda row: row["nfe"])
    cases, models = tmp_path / "cases.jsonl", ("--models", str(GOLDEN / "models"))
    expected: list[tuple[dict[str, Any], int, str]] = [
        ({}, 0, "1 passed, 0 differ, 1 not supported (1 by design: a mask token in the prompt is refused)"),
        ({"kind": "sdar_moe_new"}, 1, "1 passed, 0 differ, 1 not supported\n"),
        ({"prompt": [999, *masked["prompt"]]}, 1, "1 passed"),
    ]
    for changes, status, said in expected:
        cases.write_text("\n".join(map(json.dumps, (whole, masked | changes))))
        result = lopa("conformance", str(cases), *models)
        assert result.exit_code == status and said in result.stdout
    cases.write_text("\n")
    refused("conformance", str(cases), *models, part="no cases")
