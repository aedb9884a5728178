"""Log-likelihoods that lm-evaluation-harness asks for: what becomes of its texts, and what its results say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.tasks import TaskManager

from lopa_lab.evaluation import LopaRayLM
from lopa_lab.evaluation.chat_prompt import ChatPrompt
from lopa_lab.evaluation.engines import Groups
from lopa_lab.evaluation.harness_requests import encode_pair, needs_greedy, rolling_windows
from lopa_lab.evaluation.likelihoods import Likelihoods
from lopa_lab.word_problems import held_out_problems
from lopa_ray.engine.config import Config
from lopa_ray.engine.likelihood import LikelihoodRequest, LogLikelihood, log_likelihoods
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import PromptTooLongError
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer
from support.paths import TASKS
from support.solved_problems import solved_problems

pytestmark = pytest.mark.medium

PROBLEMS = held_out_problems(1, 6)

BOS = 0

CONFIG = Config.load("demo", {"model": {"max_model_len": 256}})

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Iterator[LopaRayLM]:
    made = LopaRayLM(CONFIG, local=True, mc_num=4)
    yield made
    made.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine.from_config(CONFIG) as opened:
        yield opened


@pytest.fixture(scope="module")
def tokenizer(engine: LocalEngine) -> Tokenizer:
    return require_tokenizer(engine.tokenizer)


def instance(context: str, continuation: str, idx: int = 0, doc: int = 0, task: str = "task") -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), idx, (task, doc, 1))


def chat(model: LopaRayLM, question: str, prefix: str = "") -> ChatPrompt:
    history = [{"role": "user", "content": question}]
    if not prefix:
        return model.apply_chat_template(history)
    return model.apply_chat_template(
        [*history, {"role": "assistant", "content": prefix}], add_generation_prompt=False
    )


def value(engine: LocalEngine, prefix: list[int], target: list[int]) -> float:
    ((_, found),) = log_likelihoods(engine, [LikelihoodRequest(prefix, target)], mc_num=4)
    assert isinstance(found, LogLikelihood)
    return found.value


# From texts to tokens


class Split(TemplateLM):
    """The harness's own way of splitting."""

    eot_token_id = BOS
    _loglikelihood_tokens = loglikelihood_rolling = generate_until = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self.pairs: list[tuple[list[int], list[int]]] = []

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        # As transformers encodes text.
        return self._tokenizer.encode(
            string, add_special_tokens=add_special_tokens is not False, parse_special=True
        )

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        self.pairs += [(prefix, target) for _, prefix, target in requests]
        return []


@pytest.mark.parametrize(
    ("context", "continuation"),
    [
        ("Tom has 3 boxes.", " He has 4 pens."),
        ("Tom has 3 boxes. ", "He has 4 pens."),
        ("Tom has 3 boxes. \n", " He"),
        ("Tom has 1", "2 boxes"),
        ("<|im_start|>Tom has <|im_end|>", " 2 boxes<|im_end|>"),
        ("", "Tom has"),
        ("x", ""),
    ],
)
def test_a_text_is_split_as_the_harness_splits_it(
    engine: LocalEngine, tokenizer: Tokenizer, context: str, continuation: str
) -> None:
    harness = Split(tokenizer)
    harness.loglikelihood([instance(context, continuation)], disable_tqdm=True)
    assert [encode_pair(engine, context, continuation)] == harness.pairs


def test_a_context_of_spaces_or_of_nothing_begins_with_bos(engine: LocalEngine, tokenizer: Tokenizer) -> None:
    assert encode_pair(engine, "", "") == ([BOS], [])
    assert encode_pair(engine, " ", "Tom") == ([BOS], tokenizer.encode(" Tom", add_special_tokens=False))


def test_special_tokens_in_text_may_be_characters(engine: LocalEngine, tokenizer: Tokenizer) -> None:
    context, continuation = "<|im_start|>Tom", " has<|im_end|>"
    characters = tokenizer.encode(context + continuation)
    for parse_special in (True, False):
        prefix, target = encode_pair(engine, context, continuation, parse_special=parse_special)
        windows = rolling_windows(engine, context + continuation, parse_special=parse_special)
        assert (prefix + target == characters) != parse_special
        assert ([token for _, part in windows for token in part] == characters) != parse_special


@pytest.mark.parametrize("length", [1, 255, 256, 700])
def test_each_token_of_a_text_is_a_target_once(
    engine: LocalEngine, tokenizer: Tokenizer, length: int
) -> None:
    text = "x" * length
    windows = list(rolling_windows(engine, text))
    assert [token for _, target in windows for token in target] == tokenizer.encode(text)
    assert windows[0][0] == [BOS]
    assert all(prefix and len(prefix) + len(target) <= 256 for prefix, target in windows)
    assert all(len(prefix) + len(target) == 256 for prefix, target in windows[1:])


# Answers


def test_continuations_get_the_engine_s_log_likelihoods(model: LopaRayLM, engine: LocalEngine) -> None:
    question, answer = PROBLEMS[0].question, PROBLEMS[0].answer
    asked = [instance(question, " " + answer), instance(chat(model, question), answer, 1)]
    found = model.loglikelihood(asked, disable_tqdm=True)
    expected = [value(engine, *encode_pair(engine, *each.args)) for each in asked]
    assert [likelihood for likelihood, _ in found] == expected
    assert model.loglikelihood(asked[::-1], disable_tqdm=True) == found[::-1]
    assert model.loglikelihood([], disable_tqdm=True) == []


def test_a_context_that_is_too_long_loses_its_beginning(model: LopaRayLM, engine: LocalEngine) -> None:
    long, answer = "Tom has 3 boxes. " * 100, " It is 3."
    ((found, _),) = model.loglikelihood([instance(long, answer, task="long")], disable_tqdm=True)
    prefix, target = encode_pair(engine, long, answer)
    assert found == value(engine, prefix[-(256 - len(target)) :], target)
    assert totals(model, "long")["truncated_prompts"] == 1
    with pytest.raises(PromptTooLongError, match="max_model_len 256"):
        model.loglikelihood([instance("Tom", long)], disable_tqdm=True)


def totals(model: LopaRayLM, task: str) -> dict[str, Any]:
    return model.get_model_info()["lopa_ray"]["tasks"][task]


def test_texts_get_the_sum_of_their_windows(model: LopaRayLM, engine: LocalEngine) -> None:
    texts = [" ".join(problem.question for problem in PROBLEMS * 2), "", "Tom"]
    asked = [
        Instance("loglikelihood_rolling", {}, (text,), 0, ("texts", at, 1)) for at, text in enumerate(texts)
    ]
    windows = [list(rolling_windows(engine, text)) for text in texts]
    assert [len(each) > 1 for each in windows] == [True, False, False]
    expected = [math.fsum(value(engine, *window) for window in each) for each in windows]
    assert model.loglikelihood_rolling(asked, disable_tqdm=True) == expected
    assert totals(model, "texts")["requests"] == 3


def test_groups_share_requests_and_windows(model: LopaRayLM) -> None:
    two = Groups(CONFIG, 2, local=True)
    groups = Likelihoods(two, 4, "auto", parse_special=True)
    asked = [instance(problem.question, " So", at) for at, problem in enumerate(PROBLEMS)]
    expected = model.loglikelihood(asked, disable_tqdm=True)
    assert groups.of_continuations(asked, CacheHook(None), True) == expected
    text = " ".join(problem.question for problem in PROBLEMS * 2)
    texts = [Instance("loglikelihood_rolling", {}, (text,), 0, ("texts", 0, 1))]
    assert groups.of_texts(texts, CacheHook(None), True) == model.loglikelihood_rolling(
        texts, disable_tqdm=True
    )
    two.close()


def test_greedy_decoding_is_asked_for_where_a_document_has_one_continuation() -> None:
    choices = [instance("a", str(at), at, doc) for doc in range(2) for at in range(2 - doc)]
    repeated = [instance("a", "b", 0, 5), instance("a", "b", 0, 5)]
    asked = [*choices, *repeated]
    assert needs_greedy(asked, "auto") == [False, False, True, True, True]
    assert needs_greedy(asked, True) == [True] * 5 and needs_greedy(asked, False) == [False] * 5


def test_whether_greedy_decoding_gives_the_answer(model: LopaRayLM) -> None:
    prompt = chat(model, PROBLEMS[0].question, PROBLEMS[0].answer.partition("####")[0] + "####")
    wanted, other = instance(prompt, " " + PROBLEMS[0].result), instance(prompt, " 77")
    (right,), (wrong,) = (model.loglikelihood([each], disable_tqdm=True) for each in (wanted, other))
    assert right[1] is True and wrong[1] is False and wrong[0] < right[0] <= 0


# Tasks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tasks find their file: three answers to each problem, of which the first or second is right.

    It is the model's own: another right one has words in it that nothing tells.
    """
    lines = []
    solved = solved_problems(1, 12)
    for at, (problem, answer) in enumerate(solved):
        wrong = answer.replace(problem.result, str(int(problem.result) + 1))
        choices = [answer, wrong] if at % 2 else [wrong, answer]
        choices.append(solved[at - 1][1])
        lines.append(json.dumps({"question": problem.question, "choices": choices, "gold": 1 - at % 2}))
    (tmp_path / "word_problem_choices.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.nightly
def test_tasks_are_scored_and_results_say_that_likelihoods_are_a_bound(folder: Path) -> None:
    results = simple_evaluate(
        model="lopa_ray",
        model_args="config=demo,local=True,mc_num=8",
        tasks=["word_problem_choices", "word_problem_answers", "word_problem_texts"],
        apply_chat_template=True,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=0,
    )
    assert results["results"]["word_problem_choices"]["acc,none"] >= 2 / 3
    answers = results["results"]["word_problem_answers"]
    assert answers["acc,none"] > 0 and 1 <= answers["perplexity,none"] < 1e6
    assert 0 < results["results"]["word_problem_texts"]["bits_per_byte,none"] < 8
    tasks = results["config"]["lopa_ray"]["tasks"]
    assert [took["requests"] for took in tasks.values()] == [36, 12, 12]
    for took in tasks.values():
        assert took["loglikelihood"].startswith("Monte-Carlo bound") and "8 draws" in took["loglikelihood"]
        assert (
            took["forwards"] >= took["steps"] > 0 and took["seconds"] > 0 and took["truncated_prompts"] == 0
        )
