"""The code benchmarks of the paper's evaluation: prompts, and what passes."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("evalplus")

from lopa_lab.paper.tasks import sandbox
from lopa_lab.paper.tasks.benchmark_data import BenchmarkData
from lopa_lab.paper.tasks.benchmarks import CODE_TASKS
from lopa_lab.paper.tasks.code_task import CodeTask, fenced
from lopa_lab.paper.tasks.evalplus_task import HumanEvalPlus, MbppPlus
from lopa_lab.paper.tasks.humaneval import HumanEval
from lopa_lab.paper.tasks.humaneval_infilling import HumanEvalInfilling
from lopa_lab.paper.tasks.mbpp import Mbpp
from lopa_lab.paper.tasks.sandbox import Isolation
from lopa_lab.paper.tasks.task import BenchmarkProblem
from lopa_ray.errors import SettingsError
from support.harness_tasks import chat_of, harness_task
from support.isolations import ISOLATIONS, require_isolation
from support.paths import DATA

CODE = DATA / "code"


def only(task: CodeTask) -> BenchmarkProblem:
    (problem,) = task.problems()
    return problem


class TestPrompts:
    def test_humaneval(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for problem in HumanEval(CODE / "humaneval.jsonl").problems():
            harness = harness_task(monkeypatch, "humaneval", "humaneval", [problem.row])
            assert problem.prompt == harness.fewshot_context(dict(problem.row), harness.config.num_fewshot)
            assert list(problem.stop) == harness.config.generation_kwargs["until"]
            assert problem.prefix == ""

    def test_humaneval_as_a_chat(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for problem in HumanEval(CODE / "humaneval.jsonl", chat=True).problems():
            harness = harness_task(monkeypatch, "humaneval", "humaneval_instruct", [problem.row])
            expected = chat_of(harness, problem.row)
            assert [*problem.prompt, {"role": "assistant", "content": problem.prefix}] == expected
            assert list(problem.stop) == harness.config.generation_kwargs["until"]

    def test_mbpp(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problems = Mbpp(CODE / "mbpp.jsonl").problems()
        assert [problem.problem_id for problem in problems] == ["11", "12"]
        for problem in problems:
            row = {"text": problem.row.get("prompt"), **problem.row}
            harness = harness_task(monkeypatch, "mbpp", "mbpp", [row])
            assert problem.prompt == harness.fewshot_context(row, Mbpp.shots)
            assert harness.config.num_fewshot == Mbpp.shots
            assert list(problem.stop) == harness.config.generation_kwargs["until"]

    def test_mbpp_as_a_chat(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for problem in Mbpp(CODE / "mbpp.jsonl", chat=True).problems():
            row = {"text": problem.row.get("prompt"), **problem.row}
            expected = chat_of(harness_task(monkeypatch, "mbpp", "mbpp_instruct", [row]), row)
            assert [*problem.prompt, {"role": "assistant", "content": problem.prefix}] == expected

    def test_humaneval_infilling(self) -> None:
        problems = HumanEvalInfilling(CODE / "humaneval_infilling.jsonl").problems()
        for problem in problems:
            assert (problem.prompt, problem.suffix) == (problem.row["prompt"], problem.row["suffix"])
            assert (problem.prefix, problem.stop) == ("", ())
            assert problem.cut("a\nb\n") == "a\nb\n"
        with pytest.raises(SettingsError, match="humaneval_infilling has no chats"):
            HumanEvalInfilling(CODE / "humaneval_infilling.jsonl", chat=True).problems()

    def test_plus(self) -> None:
        problem = only(MbppPlus(CODE / "evalplus_mbpp.jsonl"))
        assert isinstance(problem.prompt, str) and problem.prompt.endswith('(3,)) == 3\n"""\n')
        assert problem.cut('code\n"""more') == "code"
        of_hub = only(MbppPlus(CODE / "mbpp_plus_hub.jsonl"))
        assert (
            of_hub.prompt == '"""\nWrite a function to add up a list.\nassert int(add_up([1, 2])) == 3\n"""\n'
        )

    def test_plus_as_a_chat(self) -> None:
        problem = only(HumanEvalPlus(CODE / "evalplus_humaneval.jsonl", chat=True))
        (message,) = problem.prompt
        assert isinstance(message, dict) and message["role"] == "user"
        assert message["content"].startswith("Please provide a self-contained Python script")
        assert message["content"].endswith('The largest of the values.\n    """\n```\n')
        assert problem.prefix.endswith("tests:\n```python\n")
        assert problem.cut("def f():\n    pass\n```\nThis works.") == "def f():\n    pass"


class TestGrading:
    @pytest.mark.parametrize("chat", [False, True])
    def test_humaneval(self, chat: bool) -> None:
        task = HumanEval(CODE / "humaneval.jsonl", chat=chat)
        for problem in task.problems():
            right = problem.row["canonical_solution"]
            assert task.grade(problem, right) == {"pass@1": 1.0}
            assert task.grade(problem, f"```python\n{problem.row['prompt']}{right}```\nThis works.") == {
                "pass@1": 1.0
            }
        assert task.grade(task.problems(1)[0], "    return False\n") == {"pass@1": 0.0}

    @pytest.mark.parametrize(
        "answer",
        [
            "    import sys\n    sys.exit(0)\n    return 1",
            "    import os\n    os._exit(0)\n    return 1",
            "",
            "    return (",
            "\0",
        ],
    )
    def test_nothing_passes_without_its_tests(self, answer: str) -> None:
        humaneval, plus = (
            HumanEval(CODE / "humaneval.jsonl"),
            HumanEvalPlus(CODE / "evalplus_humaneval.jsonl"),
        )
        assert humaneval.grade(humaneval.problems(1)[0], answer) == {"pass@1": 0.0}
        assert plus.grade(only(plus), answer) == {"pass@1": 0.0, "base_pass@1": 0.0}

    def test_humaneval_infilling(self) -> None:
        task = HumanEvalInfilling(CODE / "humaneval_infilling.jsonl")
        for problem in task.problems():
            assert task.grade(problem, problem.row["canonical_solution"]) == {"pass@1": 1.0}
            assert task.grade(problem, "") == {"pass@1": 0.0}
        assert task.grade(task.problems()[1], "        total = value\n") == {"pass@1": 0.0}
        # The answer stands between prompt and suffix as it is: without its line break it runs into the next line.
        assert task.grade(task.problems()[1], "        total += value") == {"pass@1": 0.0}

    def test_mbpp(self) -> None:
        task = Mbpp(CODE / "mbpp.jsonl")
        for problem in task.problems():
            assert task.grade(problem, problem.row["code"] + "\n") == {"pass@1": 1.0}
            assert task.grade(problem, f"```python\n{problem.row['code']}\n```\n") == {"pass@1": 1.0}
        double = task.problems(1)[0]
        assert task.grade(double, "def double(n):\n    return [0, 2, 5, -6][n]") == {"pass@1": 0.0}
        assert task.grade(double, "import sys\nsys.exit(0)") == {"pass@1": 0.0}

    def test_mbpp_plus_of_the_hub(self) -> None:
        task = MbppPlus(CODE / "mbpp_plus_hub.jsonl")
        problem = only(task)
        assert task.grade(problem, problem.row["code"]) == {"pass@1": 1.0, "base_pass@1": 1.0}
        almost = "def add_up(values):\n    return abs(sum(values))"
        assert task.grade(problem, almost) == {"pass@1": 0.0, "base_pass@1": 1.0}
        assert task.grade(problem, "def add_up(values):\n    return 1") == {"pass@1": 0.0, "base_pass@1": 0.0}

    def test_humaneval_plus_of_the_hub(self, tmp_path: Path) -> None:
        rows = [json.loads(line) for line in (CODE / "humaneval.jsonl").read_text().splitlines()]
        task = HumanEvalPlus(write(tmp_path, rows[0]))
        assert task.grade(only(task), rows[0]["canonical_solution"]) == {"pass@1": 1.0}
        assert task.grade(only(task), "    return True") == {"pass@1": 0.0}

    @pytest.mark.parametrize("isolation", ISOLATIONS)
    def test_humaneval_plus_of_a_release(self, isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
        require_isolation(isolation)
        monkeypatch.setattr(sandbox, "check_sandbox", lambda: isolation)
        task = HumanEvalPlus(CODE / "evalplus_humaneval.jsonl")
        problem = only(task)
        assert task.grade(problem, problem.row["canonical_solution"]) == {"pass@1": 1.0, "base_pass@1": 1.0}
        almost = (
            "    best = 0.0\n    for value in values:\n        best = max(best, value)\n    return best\n"
        )
        assert task.grade(problem, almost) == {"pass@1": 0.0, "base_pass@1": 1.0}
        assert task.grade(problem, "    return values[0]\n") == {"pass@1": 0.0, "base_pass@1": 0.0}
        # Floats count as equal within `atol`, as in EvalPlus.
        assert task.grade(problem, "    return max(values) + 1e-9\n")["base_pass@1"] == 1.0

    def test_mbpp_plus_of_a_release(self) -> None:
        task = MbppPlus(CODE / "evalplus_mbpp.jsonl", chat=True)
        problem = only(task)
        # EvalPlus makes tuples of the inputs of this task, by its number.
        right = "def count_items(first, second):\n    assert type(first) is tuple\n    return len(first) + len(second)"
        assert task.grade(problem, right) == {"pass@1": 1.0, "base_pass@1": 1.0}
        assert task.grade(problem, right.replace("tuple", "list")) == {"pass@1": 0.0, "base_pass@1": 0.0}

    def test_fences(self) -> None:
        assert fenced("a\n```python\nb\n```\nc") == "b\n"
        assert fenced("a\n```\nb") == "a\n"
        assert fenced("a") == "a"


class TestData:
    def test_names(self) -> None:
        tasks = {name: make(CODE / "humaneval.jsonl", chat=False) for name, make in CODE_TASKS.items()}
        assert {
            name: (task.title, task.shots, task.metric, task.runs_code) for name, task in tasks.items()
        } == {
            "humaneval": ("HumanEval", 0, "pass@1", True),
            "humaneval_infilling": ("HumanEval-Infilling, single-line", 0, "pass@1", True),
            "humaneval_plus": ("HumanEval+", 0, "pass@1", True),
            "mbpp": ("MBPP", 3, "pass@1", True),
            "mbpp_plus": ("MBPP+", 0, "pass@1", True),
        }

    def test_versions(self) -> None:
        versions = HumanEval(CODE / "humaneval.jsonl").versions()
        assert set(versions) == {"prompts", "python", "data", "evalplus"}
        name, digest = versions["data"].split(" sha256:")
        assert name == "humaneval.jsonl" and len(digest) == 12

    def test_compressed(self, tmp_path: Path) -> None:
        compressed = gzip.compress(codecs.BOM_UTF8 + (CODE / "humaneval.jsonl").read_bytes())
        for name in ("data.jsonl.gz", "data.jsonl"):
            (tmp_path / name).write_bytes(compressed)
            assert HumanEval(tmp_path / name).size == len(HumanEval(tmp_path / name).problems()) == 2
        (tmp_path / "plain.gz").write_bytes((CODE / "humaneval.jsonl").read_bytes())
        assert HumanEval(tmp_path / "plain.gz").size == 2

    @pytest.mark.parametrize("damage", ["cut", "checksum", "flipped", "header"])
    def test_damaged(self, tmp_path: Path, damage: str) -> None:
        whole = gzip.compress((CODE / "humaneval.jsonl").read_bytes())
        content = {
            "cut": whole[:-20],
            "checksum": whole[:-8] + bytes(8),
            "flipped": whole[:10] + b"\xff" * 20 + whole[30:],
            "header": whole[:2] + b"\x00" + whole[3:],
        }[damage]
        file = tmp_path / "data.jsonl.gz"
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=f"^--data: {file} cannot be read: "):
            BenchmarkData.read(file)

    def test_lines_end_at_line_feeds_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl"
        file.write_bytes('{"a": "1\u2028\u00852"}\r\n\r\n{"a": "3"}'.encode())
        data = BenchmarkData.read(file)
        assert data.rows == [{"a": "1\u2028\u00852"}, {"a": "3"}] and data.numbers == [1, 3]
        with pytest.raises(SettingsError, match=f"^--data: {file}, row 3: has no 'b'; got a$"):
            data.check(lambda row: {"b" if row["a"] == "3" else "a": str})

    @pytest.mark.parametrize("content", ["", "\n \r\n", "\ufeff"])
    def test_without_rows(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "rows.jsonl"
        file.write_text(content, encoding="utf-8")
        with pytest.raises(SettingsError, match=f"^--data: {file}: has no rows$"):
            BenchmarkData.read(file)

    def test_numbers_as_ids(self, tmp_path: Path) -> None:
        row = json.loads((CODE / "humaneval.jsonl").read_text().splitlines()[0]) | {"task_id": 7}
        for chat in (False, True):
            assert only(HumanEval(write(tmp_path, row), chat=chat)).problem_id == "7"

    def test_single_lines_alone(self, tmp_path: Path) -> None:
        row = json.loads((CODE / "humaneval_infilling.jsonl").read_text().splitlines()[0])
        rows = [row, row | {"task_id": "MultiLineInfilling/HumanEval/900/L0_L1"}]
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in rows))
        assert only(HumanEvalInfilling(file)).problem_id == row["task_id"]
        with pytest.raises(SettingsError, match="has no rows of humaneval_infilling"):
            HumanEvalInfilling(write(tmp_path, rows[1])).problems()
        del row["suffix"]
        with pytest.raises(SettingsError, match="has no 'suffix'"):
            HumanEvalInfilling(write(tmp_path, row)).problems()

    @pytest.mark.parametrize(
        ("task", "change", "message"),
        [
            (Mbpp, {"test_list": []}, "'test_list': got an empty list; allowed: at least one assertion"),
            (
                Mbpp,
                {"test_list": ["assert True", 1]},
                "'test_list': got .'assert True', 1.; allowed: a list of",
            ),
            (Mbpp, {"test_imports": None}, "'test_imports': got None; allowed: a list of str"),
            (Mbpp, {"test_setup_code": None}, "'test_setup_code': got NoneType; allowed: str"),
            (MbppPlus, {"test_list": []}, "'test_list': got an empty list"),
            (
                MbppPlus,
                {"code": "def add_up(:"},
                r"'code': got no Python \(.*line 1\)\); allowed: source that",
            ),
            (MbppPlus, {"test_list": ["assert ("]}, r"'test_list': got no Python \("),
            (
                MbppPlus,
                {"code": "def other():\n    pass"},
                "'code': got no function that the first assertion",
            ),
        ],
    )
    def test_unusable(
        self, tmp_path: Path, task: type[CodeTask], change: dict[str, Any], message: str
    ) -> None:
        rows = [json.loads((CODE / "mbpp_plus_hub.jsonl").read_text())]
        rows.append(rows[0] | {"task_id": 15} | change)
        file = tmp_path / "rows.jsonl"
        file.write_text("\n".join(json.dumps(row) for row in rows))
        with pytest.raises(SettingsError, match=f"^--data: {file}, row 2: {message}"):
            task(file).problems(1)

    @pytest.mark.parametrize(
        ("task", "change", "message"),
        [
            (HumanEval, {"test": None}, "row 1: 'test': got NoneType; allowed: str"),
            (HumanEval, {"test": ...}, "row 1: has no 'test'; got task_id, prompt"),
            (HumanEval, {"task_id": ...}, "row 1: has no 'task_id'"),
            (HumanEvalPlus, {"plus_input": []}, "row 1: has no 'base_input'"),
            (Mbpp, {}, "has no rows of mbpp"),
            (Mbpp, {"task_id": 12}, "row 1: has no 'test_list'"),
        ],
    )
    def test_lacking(
        self, tmp_path: Path, task: type[CodeTask], change: dict[str, Any], message: str
    ) -> None:
        row = json.loads((CODE / "humaneval.jsonl").read_text().splitlines()[0]) | change
        file = write(tmp_path, {key: value for key, value in row.items() if value is not ...})
        with pytest.raises(SettingsError, match=message) as raised:
            task(file).problems()
        assert str(file) in str(raised.value)

    def test_unreadable(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="cannot be read"):
            HumanEval(tmp_path / "nowhere.jsonl").problems()
        (tmp_path / "broken.jsonl").write_text('{"task_id": 1}\n{"task_id"\n')
        with pytest.raises(SettingsError, match="line 2: not valid JSON"):
            HumanEval(tmp_path / "broken.jsonl").problems()
        twice = (CODE / "humaneval.jsonl").read_text().splitlines()[:1] * 2
        (tmp_path / "twice.jsonl").write_text("\n".join(twice))
        with pytest.raises(SettingsError, match="row 2: got the task_id 'HumanEval/0' of row 1"):
            HumanEval(tmp_path / "twice.jsonl").problems()

    def test_of_the_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [json.loads(line) for line in (CODE / "humaneval.jsonl").read_text().splitlines()]
        asked = []

        def load_dataset(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
            asked.append((arguments, options))
            return rows

        def resolve_revision(repository: str, **options: Any) -> SimpleNamespace:
            assert (repository, options["repo_type"]) == ("openai/openai_humaneval", "dataset")
            return SimpleNamespace(resolved="0123abc")

        monkeypatch.setattr("datasets.load_dataset", load_dataset)
        monkeypatch.setattr("huggingface_hub.resolve_revision", resolve_revision)
        task = HumanEval()
        assert [problem.problem_id for problem in task.problems()] == ["HumanEval/0", "HumanEval/1"]
        assert asked == [(("openai/openai_humaneval", None), {"split": "test", "revision": "0123abc"})]
        assert task.versions()["data"] == "openai/openai_humaneval@0123abc"

    def test_a_hub_out_of_reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def resolve_revision(repository: str, **options: Any) -> SimpleNamespace:
            raise ConnectionError("no route")

        monkeypatch.setattr("huggingface_hub.resolve_revision", resolve_revision)
        with pytest.raises(
            SettingsError, match=r"openai_humaneval cannot be loaded .*no route\); allowed: a file"
        ):
            HumanEval().problems()

    def test_without_evalplus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from importlib import metadata

        def version(name: str) -> str:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", version)
        with pytest.raises(
            SettingsError, match=r"humaneval needs EvalPlus; install it in .*: pip install -e '\.\[eval\]'"
        ):
            HumanEval(CODE / "humaneval.jsonl").problems()


def write(folder: Path, row: dict[str, Any]) -> Path:
    file = folder / "data.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file
