"""lm-evaluation-harness over this project's engines: what tasks ask for, and what its results say."""

from __future__ import annotations

import json
import pickle
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
from lopa_lab.evaluation.totals import DecodeTotals, decoding_lines
from lopa_lab.requests import encode_prompt
from lopa_lab.word_problems import held_out_problems
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.text.tokenizer import require_tokenizer
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


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine.from_config(Config.load("demo", {"model": {"max_model_len": 512}})) as opened:
        yield opened


@pytest.fixture(scope="module")
def settings(engine: LocalEngine) -> GenerationSettings:
    """Those of `instance`."""
    return engine.config.decode.replace(max_new_tokens=64)


def instance(context: str, repeat: int = 0, **generation: Any) -> Instance:
    return Instance("generate_until", {}, (context, {**SHORT, **generation}), repeat, ("task", 0, 1))


def answers(model: LopaRayLM, *instances: Instance) -> list[str]:
    return model.generate_until(list(instances), disable_tqdm=True)


def chat(model: LopaRayLM, *contents: str, **options: Any) -> ChatPrompt:
    roles = ("user", "assistant")
    history = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return model.apply_chat_template(history, **options)


def test_answers_are_those_of_the_engine(
    model: LopaRayLM, engine: LocalEngine, settings: GenerationSettings
) -> None:
    """Special tokens that a data set writes into a chat are text, too."""
    plain = [engine.generate(prompt, settings, raw=True).text for prompt in PROMPTS]
    assert answers(model, *map(instance, PROMPTS)) == plain
    contents = [*PROMPTS, f"{PROMPTS[0]}<|im_end|>"]
    chats = [engine.generate(content, settings).text for content in contents]
    assert answers(model, *(instance(chat(model, content)) for content in contents)) == chats


def test_special_tokens_in_text(engine: LocalEngine, settings: GenerationSettings) -> None:
    text = f"<|im_start|>user\n{PROMPTS[0]}<|im_end|>\n<|im_start|>assistant\n"
    found = []
    for parse_special in (True, False):
        made = get_model("lopa_ray")(local=True, max_model_len=512, parse_special=parse_special)
        found += answers(made, instance(text))
        assert found[-1] == engine.generate(text, settings, raw=True, parse_special=parse_special).text
        assert made.get_model_info()["lopa_ray"]["parse_special"] is parse_special
        made.close()
    assert found[0] != found[1]


def test_answers_end_before_a_stop_string(model: LopaRayLM) -> None:
    (whole,) = answers(model, instance(chat(model, PROMPTS[0])))
    assert "####" in whole
    (cut,) = answers(model, instance(chat(model, PROMPTS[0]), until=["no such text", "####"]))
    assert cut == whole[: whole.index("####")]
    assert answers(model, instance(chat(model, PROMPTS[0]), until="####")) == [cut]


def test_chats_of_several_turns_and_beginnings_of_answers(
    model: LopaRayLM, engine: LocalEngine, settings: GenerationSettings
) -> None:
    prompt = chat(model, PROMPTS[0], "It is 3.", PROMPTS[1])
    assert prompt.messages[1] == {"role": "assistant", "content": "It is 3."} and not prompt.prefix
    begun = chat(model, PROMPTS[0], "The answer", add_generation_prompt=False)
    assert begun.prefix == "The answer" and str(begun).endswith("The answer")
    tokenizer = require_tokenizer(engine.tokenizer)
    for asked in (prompt, begun):
        ids = encode_prompt(engine, asked.messages, asked.prefix)
        assert tokenizer.decode(ids, skip_special_tokens=False) == str(asked)
        kept = pickle.loads(pickle.dumps(asked))
        assert kept == asked and (kept.messages, kept.prefix) == (asked.messages, asked.prefix)
        assert answers(model, instance(kept)) == [engine.generate(ids, settings).text]


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
        ({"mc_num": 0}, "mc_num: got 0; allowed"),
        ({"check_greedy": "maybe"}, "check_greedy: got 'maybe'; allowed"),
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


def test_lines_on_what_decoding_took() -> None:
    totals = DecodeTotals(requests=2, steps=10, forwards=40, seconds=4.0, tokens=30)
    assert decoding_lines({}) == []
    shown, note = decoding_lines({"word_problems": totals})
    assert shown.splitlines()[0] == "| Tasks | TPF | tokens/s | tokens | requests |"
    assert shown.splitlines()[2] == "| word_problems | 3.00 | 7.5 | 30 | 2 |"
    assert note.startswith("word_problems: 2 problems are too few: ")


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (["--tasks", "gms8k"], "Tasks not found: gms8k"),
        pytest.param([], "No tasks specified", marks=pytest.mark.nightly),
    ],
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
