"""lm-evaluation-harness over this project's engines: what tasks ask for, and what its results say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from typer.testing import CliRunner

from cluster.cli import app
from lopa_lab.evaluation import LopaRayLM
from lopa_lab.evaluation.chat_prompt import ChatPrompt
from lopa_lab.evaluation.engines import config_of
from lopa_lab.word_problems import held_out_problems
from lopa_ray.errors import SettingsError
from support.paths import TASKS
from support.solved_problems import solved_problems

pytestmark = pytest.mark.slow

PROBLEMS = held_out_problems(1, 4)
PROMPTS = [problem.question for problem in PROBLEMS]
SHORT = {"max_gen_toks": 64, "until": []}

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Iterator[LopaRayLM]:
    made = get_model("lopa_ray")(local=True, max_model_len=512)
    yield made
    made.close()


def instance(context: str, repeat: int = 0, **generation: Any) -> Instance:
    return Instance("generate_until", {}, (context, {**SHORT, **generation}), repeat, ("task", 0, 1))


def answers(model: LopaRayLM, *instances: Instance) -> list[str]:
    return model.generate_until(list(instances), disable_tqdm=True)


@pytest.mark.parametrize("parse_special", [True, False])
def test_special_tokens_in_text(parse_special: bool) -> None:
    made = get_model("lopa_ray")(local=True, max_model_len=256, parse_special=parse_special)
    text = "<|im_start|>user\nTom has 6 bags.<|im_end|>\n<|im_start|>assistant\n"
    characters = made._tokenizer.encode(text)
    _, session = made._prepare(instance(text), repeat=0)
    assert (session.prompt == characters) != parse_special
    assert made.get_model_info()["lopa_ray"]["parse_special"] is parse_special
    made.close()


def chat(model: LopaRayLM, *contents: str, **options: Any) -> ChatPrompt:
    roles = ("user", "assistant")
    history = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return model.apply_chat_template(history, **options)


def test_answers_are_those_of_the_engine(model: LopaRayLM) -> None:
    settings = model._engine.config.decode.replace(max_new_tokens=64)
    plain = [model._engine.generate(prompt, settings, raw=True).text for prompt in PROMPTS]
    assert answers(model, *map(instance, PROMPTS)) == plain
    chats = [model._engine.generate(prompt, settings).text for prompt in PROMPTS]
    assert answers(model, *(instance(chat(model, prompt)) for prompt in PROMPTS)) == chats


def test_answers_end_before_a_stop_string(model: LopaRayLM) -> None:
    (whole,) = answers(model, instance(chat(model, PROMPTS[0])))
    assert "####" in whole
    (cut,) = answers(model, instance(chat(model, PROMPTS[0]), until=["no such text", "####"]))
    assert cut == whole[: whole.index("####")]
    assert answers(model, instance(chat(model, PROMPTS[0]), until="####")) == [cut]


def test_chats_of_several_turns_and_beginnings_of_answers(model: LopaRayLM) -> None:
    prompt = chat(model, PROMPTS[0], "It is 3.", PROMPTS[1])
    assert prompt.messages[1] == {"role": "assistant", "content": "It is 3."}
    assert str(prompt) == model._tokenizer.decode(model._encode(prompt), skip_special_tokens=False)
    begun = chat(model, PROMPTS[0], "The answer", add_generation_prompt=False)
    assert begun.prefix == "The answer" and str(begun).endswith("The answer")
    ids = model._encode(begun)
    assert model._tokenizer.decode(ids, skip_special_tokens=False) == str(begun)


def test_special_tokens_in_a_data_set_are_text(model: LopaRayLM) -> None:
    special = next(text for text, is_special in model._tokenizer.added_tokens.values() if is_special)
    plain, marked = (model._encode(chat(model, content)) for content in ("x", f"x{special}"))
    ids = {token for token, (_, is_special) in model._tokenizer.added_tokens.items() if is_special}
    assert [token for token in marked if token in ids] == [token for token in plain if token in ids]


def test_sampled_answers_differ_by_repeat_and_come_again(model: LopaRayLM) -> None:
    hot = {"do_sample": True, "temperature": 1.5}
    drawn = [instance(PROMPTS[0], repeat, **hot) for repeat in range(3)]
    found = answers(model, *drawn)
    assert len(set(found)) > 1 and answers(model, *drawn) == found
    greedy = [instance(PROMPTS[0], do_sample=False, temperature=1.5), instance(PROMPTS[0])]
    assert len(set(answers(model, *greedy))) == 1


def test_decode_settings_may_be_given_per_task(model: LopaRayLM) -> None:
    before = model.totals["task"].forwards, model.totals["task"].steps
    answers(model, instance(PROMPTS[0], num_branches=1))
    forwards, steps = model.totals["task"].forwards - before[0], model.totals["task"].steps - before[1]
    assert forwards == steps
    with pytest.raises(SettingsError, match="surprise"):
        answers(model, instance(PROMPTS[0], surprise=1))


def test_a_prompt_that_is_too_long_loses_its_beginning(model: LopaRayLM) -> None:
    before = model.totals["task"].truncated_prompts
    long = "Tom has 3 boxes. " * 200 + PROMPTS[0]
    assert answers(model, instance(long))[0]
    assert model.totals["task"].truncated_prompts == before + 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"surprise": 1}, "surprise"),
        ({"a.b": 1}, "unknown section 'a'"),
        ({"num_branches": 0}, "num_branches"),
        ({"groups": 2}, "local"),
        ({"config": "absent"}, "absent"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(SettingsError, match=part):
        LopaRayLM(local=True, **arguments)


def test_arguments_are_shorthands_settings_and_settings_with_their_section() -> None:
    given = {
        "workers": 3,
        "model": "folder",
        "num_branches": 2,
        "max_num_seqs": 5,
        "group.num_cpus": 0.5,
        "block_size": 16,
    }
    config = config_of("demo", given)
    assert (config.group.num_workers, config.group.num_cpus) == (3, 0.5)
    assert (config.model.path, config.model.max_num_seqs) == ("folder", 5)
    assert config.decode.model_dump()["block_size"] == 16 and config.decode.model_dump()["num_branches"] == 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the task of word problems finds its file: problems that the model solves."""
    lines = [json.dumps(asdict(problem)) for problem, _ in solved_problems(1, 12)]
    (tmp_path / "word_problems.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_task_is_scored_and_its_results_say_what_decoding_took(folder: Path) -> None:
    results = simple_evaluate(
        model="lopa_ray",
        model_args="config=demo,local=True,num_branches=4",
        tasks=["word_problems"],
        limit=8,
        apply_chat_template=True,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=10,
    )
    assert results["results"]["word_problems"]["exact_match,number"] == 1.0
    info = results["config"]["lopa_ray"]
    assert info["settings"]["decode"]["num_branches"] == 4
    assert info["parse_special"] is True
    took = info["tasks"]["word_problems"]
    assert took["requests"] == 8 and took["tpf"] == took["tokens"] / took["steps"] > 2 and took["tps"] > 0


@pytest.mark.parametrize(
    ("tasks", "words"), [(["--tasks", "gms8k"], "Tasks not found: gms8k"), ([], "No tasks specified")]
)
def test_wrong_tasks_are_one_line_and_start_no_group(
    tasks: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def refuse(*_: Any, **options: Any) -> None:
        raise AssertionError(f"a group was started: {options}")

    monkeypatch.setattr("lopa_lab.evaluation.engines.open_engine", refuse)
    result = CliRunner().invoke(app, ["eval", "run", *tasks])
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"Error: {words}") and last.endswith("`lopa eval ls tasks` lists the tasks")
