"""`lopa bench` at its smallest sizes, as it is typed. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cluster.cli import app
from lopa_lab.bench.measurements import BenchRecord
from lopa_lab.bench.parts import parts_of
from lopa_lab.word_problems import held_out_problems
from lopa_ray import LocalEngine
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.lopa import D2FSettings
from support.bench_command import bench, bench_record

pytestmark = pytest.mark.medium

TINY = ("--shape", "dream-27m", "--layers", "1")


def test_forward_beside_its_floor_and_a_plain_forward(tmp_path: Path) -> None:
    sizes = ("--branches", "1,2", "--window", "8", "--prefix", "0,16", "--requests", "1,2", "--repeats", "1")
    record = bench_record(tmp_path, "forward", *TINY, *sizes, "--dtype", "float32,bfloat16")
    assert record.name == "forward"
    assert len(record.rows) == 2 * 2 * 2 * 2
    assert len({record.key_of(row) for row in record.rows}) == len(record.rows)
    for row in record.rows:
        assert row["rows"] == 8 * row["branches"] * row["requests"]
        assert all(row[name] > 0 for name in ("step ms", "floor ms", "plain ms"))
        assert row["step ÷ plain"] == pytest.approx(row["step ms"] / row["plain ms"])


@pytest.mark.slow
def test_what_has_no_plain_forward_or_no_floor_leaves_the_figure_out(tmp_path: Path) -> None:
    sizes = ("--branches", "2", "--window", "8", "--prefix", "8", "--repeats", "1")
    for option, figure in (
        ("implementation=native,transformers", "plain ms"),
        ("quantization=none,w8a8", "floor ms"),
    ):
        name, _, values = option.partition("=")
        record = bench_record(tmp_path, "forward", *TINY, *sizes, f"--{name}", values)
        assert [row[figure] is None for row in record.rows] == [False, True]
        assert all(row["step ms"] > 0 for row in record.rows)


def test_an_earlier_record_is_set_beside(tmp_path: Path) -> None:
    command = ("forward", *TINY, "--branches", "1", "--window", "8", "--prefix", "8", "--repeats", "1")
    before = tmp_path / "before.json"
    assert bench(*command, "--output", before).exit_code == 0
    values = json.loads(before.read_text())
    values["machine"]["cpu"], values["rows"][0]["floor ms"] = "another", values["rows"][0]["floor ms"] * 4
    before.write_text(json.dumps(values))
    result = bench(*command, "--against", before)
    assert result.exit_code == 0, result.output
    assert "×)" in result.output
    assert "another" in result.output


def test_steps_in_this_process(tmp_path: Path) -> None:
    options = ("--workers", "0", "--branches", "1,3", "--max-new-tokens", "16", "--steps", "20")
    record = bench_record(tmp_path, "step", *TINY, *options, "--dtype", "auto")
    assert [row["branches"] for row in record.rows] == [1, 3]
    for row in record.rows:
        assert row["dtype"] in ("float32", "bfloat16")
        assert (row["copies in"], row["waits"]) == (1, 1)
        assert row["steps"] == 20 and row["forward ms"] > 0
        assert row["step ms"] >= row["control ms"] > 0
    assert record.rows[0]["launches"] == record.rows[1]["launches"] > 0


def test_freedave_has_the_calls_of_the_same_rule_and_drafts_keep_answers(tmp_path: Path) -> None:
    record = bench_record(tmp_path, "freedave", "--problems", "1", "--rules", "0.9")
    for row in record.rows:
        assert row["rule"] == "0.9" and row["problems"] == 1
        if row["acceptance"] == "exact":
            assert row["equal"] == 1 and row["calls"] <= row["FreeDave calls"]
        if row["branches"] == 1:
            assert row["calls"] == row["rows"] == row["FreeDave calls"]


ROLLOUTS = (
    "rollouts",
    "--problems",
    "1",
    "-n",
    "3",
    "--concurrency",
    "1,3",
    "--set",
    "decode.max_new_tokens=32",
)


def test_rollouts_of_exact_drafts_are_those_of_one_branch(tmp_path: Path) -> None:
    rows = bench_record(tmp_path, *ROLLOUTS, "--branches", "1,4").rows
    assert [(row["concurrency"], row["branches"]) for row in rows] == [
        (number, count) for number in (1, 3) for count in ("1", "4")
    ]
    alone, drafts = rows[:2]
    assert drafts["forwards"] < alone["forwards"] and drafts["rows"] > alone["rows"]
    assert drafts["TPF"] * drafts["forwards"] == pytest.approx(alone["TPF"] * alone["forwards"])
    for row, same in zip(rows[:2], rows[2:], strict=True):
        assert row["rows"] == same["rows"] and row["tokens/s"] > row["rollouts/s"] > 0


def test_stored_prompts_are_rows_of_one_rollout(tmp_path: Path) -> None:
    shared = ("--set", "model.prefix_cache=exact", "--set", "decode.window_attention=block_causal")
    apart = bench_record(tmp_path, *ROLLOUTS, *shared[2:], "--branches", "1,4").rows[2:]
    together = bench_record(tmp_path, *ROLLOUTS, *shared, "--branches", "1,4").rows[2:]
    assert [row["forwards"] for row in together] == [row["forwards"] for row in apart]
    assert all(ours["rows"] < theirs["rows"] for ours, theirs in zip(together, apart, strict=True))


def test_other_trajectories_are_an_error() -> None:
    relaxed = ("--set", "decode.lookahead=verified", "--set", "decode.acceptance=0.1")
    result = bench(*ROLLOUTS, *relaxed, "--branches", "1,8")
    assert result.exit_code == 1
    assert "trajectories of 8 branches, 1 in flight, are others than of 1" in result.output


def test_decodes_are_those_of_the_engine(tmp_path: Path) -> None:
    record = bench_record(
        tmp_path, "decode", "--requests", "3", "--max-new-tokens", "32", "--decoder", "d2f,lopa",
        "--vary", "decode.confidence_threshold=0.9,0.7",
    )  # fmt: skip
    assert [(row["decoder"], row["confidence_threshold"]) for row in record.rows] == [
        ("d2f", 0.9), ("d2f", 0.7), ("lopa", 0.9), ("lopa", 0.7)
    ]  # fmt: skip
    with LocalEngine.from_pretrained() as engine:
        settings = D2FSettings(max_new_tokens=32, ranking="neg_entropy", confidence_threshold=0.9)
        results = engine.generate([problem.question for problem in held_out_problems(2, 3)], settings)
    first = record.rows[0]
    assert first["TPF"] == pytest.approx(sum(r.tokens for r in results) / sum(r.steps for r in results))
    assert first["same tokens %"] == 100
    assert first["TPS max"] >= first["TPS"] > 0
    assert 0 <= first["solved %"] <= 100


def test_decodes_of_random_prompts(tmp_path: Path) -> None:
    options = ("--requests", "3", "--concurrency", "2", "--max-new-tokens", "16", "--prompt", "8")
    (row,) = bench_record(tmp_path, "decode", *TINY, *options, "--decoder", "lopa").rows
    assert row["solved %"] is None and row["model"] == "dream-27m, 1 layers"


def test_every_decoder_by_default(tmp_path: Path) -> None:
    record = bench_record(tmp_path, "decode", "--requests", "1", "--max-new-tokens", "32")
    assert [row["decoder"] for row in record.rows] == [
        name for name in DECODERS if DECODERS[name].fills_masks
    ]
    assert all(row["TPF"] > 0 and row["latency p50 ms"] <= row["latency max ms"] for row in record.rows)


WRONG = {
    "fewer requests than clients": (
        ("serve", "--requests", "2", "--concurrency", "4"),
        "each must send",
    ),
    "no number of branches": (("forward", "--branches", "0"), "whole numbers from 1 on"),
    "no answers": (("rollouts", "-n", "0"), "greater than or equal"),
    "too many answers": (("rollouts", "-n", "100000"), "less than or equal"),
    "more in flight than answers": (
        ("rollouts", "-n", "2", "--concurrency", "4"),
        "allowed: 1 to 2, the answers of a group",
    ),
    "no branches of rollouts": (("rollouts", "--branches", "some"), "num_branches: got 'some'"),
    "no drafts of that decoder": (("rollouts", "--set", "decode.decoder=self_speculation"), "lookahead"),
    "no model": (("rollouts", "--set", "model.path=/nothing"), "/nothing"),
    "no shape": (("forward", "--shape", "gpt"), "allowed: dream-27m"),
    "layers of a checkpoint": (("step", "--layers", "2"), "--layers needs --shape"),
    "no kernel": (("forward", "--kernel", "fast"), "attention"),
    "no switch": (("forward", "--batch-invariant", "maybe"), "on, off"),
    "no transport": (("commit", "--transport", "pigeon"), "allowed: collective"),
    "no setting": (("decode", "--vary", "branches"), "SECTION.KEY=VALUE,VALUE"),
    "no YAML": (("decode", "--vary", "decode.guided_regex=[a-z ]+"), "not YAML values"),
    "unknown setting": (("decode", "--requests", "1", "--vary", "decode.speed=1"), "speed"),
    "no record": (("forward", "--against", "nothing.json"), "nothing.json"),
    "no folder to write to": (("forward", "--output", "/proc/nothing/record.json"), "--output"),
    "no address": (("serve", "--url", "localhost:8000"), "allowed: an address like"),
    "no server": (("serve", "--url", "http://127.0.0.1:9/v1"), "allowed: an address like"),
    "no part": (("all", "--parts", "everything"), "allowed: forward-cpu"),
    "server settings without one": (("serve", "--set", "model.dtype=bfloat16"), "--start"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    arguments, message = WRONG[name]
    result = bench(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_a_server_that_is_not_there() -> None:
    result = bench("serve", "--url", "http://127.0.0.1:9", "--requests", "16")
    assert result.exit_code == 1
    assert "cannot reach http://127.0.0.1:9" in result.output


def test_a_record_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    bench_record(tmp_path, "forward", *TINY, "--branches", "1", "--window", "8", "--repeats", "1")
    result = bench("step", "--against", tmp_path / "record.json")
    assert result.exit_code == 2
    assert "is a record of lopa bench forward; this is lopa bench step" in result.output


def test_parts_are_measured_once_and_make_a_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ("all", "--smallest", "--parts", "forward-cpu", "--output", tmp_path)
    result = bench(*command)
    assert result.exit_code == 0, result.output
    record = BenchRecord.read(tmp_path / "records" / "forward-cpu.json")
    assert record.command_line in (tmp_path / "README.md").read_text()
    assert (tmp_path / "plots" / "forward-cpu-step-time-against-branches.svg").read_text().startswith("<svg")
    again = bench(*command)
    assert "forward-cpu: measured before" in again.output
    assert BenchRecord.read(tmp_path / "records" / "forward-cpu.json") == record
    late = bench(
        "all", "--smallest", "--parts", "decode-cpu", "--minutes", "0", "--output", tmp_path / "late"
    )
    assert late.exit_code == 1 and "1 of 1 parts are missing: decode-cpu" in late.output


@pytest.mark.parametrize("smallest", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda", "npu"])
def test_the_commands_of_all_parts_can_be_typed(device: str, smallest: bool) -> None:
    parts = parts_of(device)
    assert len({part.name for part in parts}) == len(parts)
    group: Any = get_command(app).commands["bench"]
    for part in parts:
        name, *options = part.command(smallest=smallest)
        context = group.commands[name].make_context(name, options)
        assert context.params.get("device", device) == device


def test_a_report_needs_records(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = bench("report", tmp_path)
    assert result.exit_code == 2
    assert "has no records" in result.output
