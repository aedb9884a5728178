"""Answers with calls and reasoning from a real engine: what is forced is valid, whatever decodes it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.messages import ChoiceFinished, ChoicesOutput, ChoicesRequest, TextDelta
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer
from support.answers import answers, outputs
from support.tool_checkpoint import GEMMA_MARKUP, GEMMA_TEMPLATE, THINKING_TEMPLATE, write_tool_checkpoint

pytestmark = pytest.mark.medium

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SAY = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 6}},
    "required": ["text"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {"add": ADD, "say.it": SAY, "stop": {"type": "object", "properties": {}}}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMAS[name], **fields}}


TOOLS = (tool("add"), tool("say.it"), {"type": "function", "function": {"name": "stop"}})
STRICT = (tool("add", strict=True), tool("say.it", strict=True))
DECODERS: dict[str, dict[str, Any]] = {
    "lopa": {"decoder": "lopa", "num_branches": 3},
    "d2f": {"decoder": "d2f", "block_size": 16},
    "vanilla": {"decoder": "vanilla", "steps": 24},
    "block_diffusion": {"decoder": "block_diffusion"},
    "editing": {"decoder": "editing", "block_size": 8, "editing_threshold": 0.0},
    "dmax": {"decoder": "dmax", "block_size": 8},
    "nemotron": {"decoder": "nemotron", "block_size": 8},
    "multi_block": {"decoder": "multi_block", "block_size": 8, "editing_threshold": 0.0},
}
CHAT = ({"role": "user", "content": "1 + 2"},)


@dataclasses.dataclass(frozen=True)
class Model:
    """A checkpoint's engine, and the ids of its tags."""

    engine: LocalEngine
    ids: dict[str, int]

    @property
    def tokenizer(self) -> Tokenizer:
        return require_tokenizer(self.engine.tokenizer)


def make_model(folder: Any, **options: Any) -> Model:
    ids = write_tool_checkpoint(folder, **options)
    config = {"model": {"path": str(folder), "max_model_len": 1024}, "decode": {"num_branches": 2}}
    return Model(LocalEngine.from_config(Config.load("demo", config)), ids)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Tags are special tokens, which answers show nowhere else."""
    return make_model(tmp_path_factory.mktemp("model"), special_markup=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Tags are added tokens."""
    return make_model(tmp_path_factory.mktemp("plain"))


@pytest.fixture(params=["model", "plain"])
def either(request: pytest.FixtureRequest) -> Model:
    chosen: Model = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Its template opens the reasoning."""
    return make_model(tmp_path_factory.mktemp("thinking"), template=THINKING_TEMPLATE, special_markup=True)


def ask(settings: Any = None, **fields: Any) -> ChoicesRequest:
    given = {"max_new_tokens": 40, "seed": 3, **(settings or {})}
    return ChoicesRequest("id", (CHAT,), given, **fields)


def check_call(call: Any, names: Sequence[str]) -> None:
    assert call.name in names
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def check_forced(finished: ChoiceFinished, names: Sequence[str]) -> None:
    (call,) = finished.tool_calls
    check_call(call, names)
    assert (finished.text, finished.reasoning, finished.finish_reason) == ("", "", "tool_calls")


def check_stream(outputs: Sequence[ChoicesOutput]) -> ChoiceFinished:
    """The deltas of a choice make up what it ends with; returns that."""
    deltas = [output for output in outputs if isinstance(output, TextDelta)]
    (finished,) = [output for output in outputs if isinstance(output, ChoiceFinished)]
    assert "".join(delta.text for delta in deltas) == finished.text
    assert "".join(delta.reasoning for delta in deltas) == finished.reasoning
    calls: list[list[str]] = []
    for call in (delta.tool_call for delta in deltas if delta.tool_call is not None):
        if call.name is not None:
            calls.append([call.name, ""])
        calls[call.index][1] += call.arguments
    assert calls == [[call.name, call.arguments] for call in finished.tool_calls]
    tokens = [delta.tokens for delta in deltas]
    assert tokens == sorted(tokens) and max(tokens, default=0) <= finished.stats.tokens
    logprobs = tuple(logprob for delta in deltas for logprob in delta.logprobs)
    assert logprobs == finished.logprobs
    return finished


def comparable(finished: ChoiceFinished) -> ChoiceFinished:
    changed = {"seconds": 0.0, "queued_seconds": 0.0, "phases_seconds": {}}
    stats = finished.stats.model_copy(update=changed)
    return dataclasses.replace(finished, stats=stats)


# Forced calls


@pytest.mark.parametrize(
    ("decoder", "temperature"),
    [
        ("lopa", 1.0),
        ("d2f", 0.0),
        ("vanilla", 1.0),
        ("block_diffusion", 0.0),
        ("editing", 1.0),
        ("nemotron", 0.0),
    ],
)
def test_forced_calls_are_valid(model: Model, decoder: str, temperature: float) -> None:
    settings = {**DECODERS[decoder], "temperature": temperature}
    for forced in (("add",), ("add", "say.it", "stop")):
        for finished in answers(model.engine, ask(settings, tools=TOOLS, forced_tools=forced, n=2)):
            check_forced(finished, forced)


def test_choices_differ_by_their_seeds_alone(model: Model) -> None:
    request = ask({"temperature": 1.0}, tools=TOOLS, forced_tools=("add",), n=3)
    first, second = (answers(model.engine, request) for _ in range(2))
    assert list(map(comparable, first)) == list(map(comparable, second))
    assert len({finished.tool_calls for finished in first}) > 1
    assert [finished.stats.seed for finished in first] == [3, 4, 5]
    alone = answers(model.engine, ask({"temperature": 1.0, "seed": 5}, tools=TOOLS, forced_tools=("add",)))
    assert alone[0].tool_calls == first[2].tool_calls


@pytest.mark.parametrize("forced", [("say.it",), ("add", "say.it")])
def test_stop_texts_do_not_cut_a_forced_call(model: Model, forced: tuple[str, ...]) -> None:
    stop = ("{", '"', "}", "a")
    check_forced(answers(model.engine, ask(tools=TOOLS, forced_tools=forced, stop=stop))[0], forced)
    ids = sorted({token for text in stop for token in model.tokenizer.encode(text)})
    request = ask({"stop_token_ids": ids}, tools=TOOLS, forced_tools=forced)
    check_forced(answers(model.engine, request)[0], forced)


@pytest.mark.parametrize(
    "bound", [{"guided_json": {"type": "array"}}, {"guided_regex": "no"}, {"guided_choice": ["no"]}]
)
def test_the_form_of_texts_is_not_that_of_forced_calls(model: Model, bound: dict[str, Any]) -> None:
    check_forced(answers(model.engine, ask(bound, tools=TOOLS, forced_tools=("add",)))[0], ("add",))


@pytest.mark.parametrize("forced", [("add",), ("add", "say.it")])
def test_a_template_that_opens_the_reasoning_has_it_closed(thinking: Model, forced: tuple[str, ...]) -> None:
    request = ask(tools=TOOLS, forced_tools=forced)
    (choice,) = ChoiceFactory(thinking.engine).create(request, 0.0)
    tokenizer = thinking.tokenizer
    prompt = tokenizer.decode(choice.session.prompt, skip_special_tokens=False)
    opened = "<think>\n\n</think>\n\n<tool_call>\n" + '{"name": "'
    assert prompt.endswith(f'{opened}add", "arguments":' if len(forced) == 1 else opened)
    # The tags are tokens, as where the template writes them.
    assert {thinking.ids["</think>"], thinking.ids["<tool_call>"]} <= set(choice.session.prompt)
    check_forced(answers(thinking.engine, request)[0], forced)


# Calls that the model makes of its own accord


@pytest.mark.parametrize(
    ("either", "decoder", "temperature"),
    [
        ("model", "lopa", 1.0),
        ("plain", "lopa", 0.0),
        ("plain", "block_diffusion", 0.0),
        ("model", "dmax", 1.0),
        ("plain", "nemotron", 1.0),
        ("model", "multi_block", 0.0),
    ],
    indirect=["either"],
)
def test_strict_functions_are_called_as_their_schemas_say(
    either: Model, decoder: str, temperature: float
) -> None:
    settings = {
        **DECODERS[decoder],
        "temperature": temperature,
        "max_new_tokens": 80,
        "logit_bias": {either.ids["<tool_call>"]: 20.0},
    }
    (finished,) = answers(either.engine, ask(settings, tools=STRICT))
    assert len(finished.tool_calls) > 1
    for call in finished.tool_calls:
        check_call(call, ("add", "say.it"))
    assert "<tool_call>" not in finished.text


def test_at_most_one_call_ends_the_answer(model: Model) -> None:
    settings = {"max_new_tokens": 80, "logit_bias": {model.ids["<tool_call>"]: 20.0}}
    for stream in (False, True):
        request = ask(settings, tools=STRICT, parallel_tool_calls=False, stream=stream)
        (finished,) = answers(model.engine, request)
        assert (len(finished.tool_calls), finished.finish_reason) == (1, "tool_calls")
        check_call(finished.tool_calls[0], ("add", "say.it"))


@pytest.mark.parametrize("strict", [False, True])
def test_beside_a_schema_the_answer_is_either(model: Model, strict: bool) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]}
    schema["additionalProperties"] = False
    tools = STRICT if strict else TOOLS
    settings = {"guided_json": json.dumps(schema), "max_new_tokens": 60}
    kinds = set()
    for likely in ("<|endoftext|>", "<tool_call>"):  # the text is the shorter answer
        biased = {**settings, "logit_bias": {model.ids[likely]: 100.0}}
        (finished,) = answers(model.engine, ask(biased, tools=tools))
        kinds.add(bool(finished.tool_calls))
        if finished.tool_calls:
            (call,) = finished.tool_calls
            check_call(call, tuple(SCHEMAS))
            assert (finished.text, finished.finish_reason) == ("", "tool_calls")
        else:
            assert (json.loads(finished.text), finished.finish_reason) == ({"k": 1}, "stop")
    assert kinds == {False, True}


# Reasoning


def written(text: str) -> dict[str, Any]:
    """Settings under which an answer is this text, in tags as tokens."""
    tag = {"structures": [{"begin": text, "schema": {"const": 7}}], "triggers": []}
    return {"guided_structural_tag": json.dumps(tag), "max_new_tokens": 64}


def test_reasoning_is_told_from_the_answer(either: Model) -> None:
    (finished,) = answers(either.engine, ask(written("<think>\nwhy\n</think>\n\nit is")))
    assert (finished.reasoning, finished.text.replace(" ", "")) == ("why", "itis7")
    assert finished.finish_reason == "stop"
    tokenizer = either.tokenizer
    assert finished.reasoning_tokens == len(tokenizer.encode("why"))


def test_an_opened_reasoning_goes_on_until_its_tag(thinking: Model) -> None:
    free = {"max_new_tokens": 24, "ignore_eos": True}
    banned = {thinking.ids["</think>"]: -100.0}
    (cut_off,) = answers(thinking.engine, ask({**free, "logit_bias": banned}))
    assert (cut_off.text, cut_off.finish_reason) == ("", "length") and cut_off.reasoning
    (closed,) = answers(thinking.engine, ask({**free, "logit_bias": {thinking.ids["</think>"]: 100.0}}))
    assert closed.reasoning == "" and closed.text.startswith("</think>")  # the first one closes it
    # A form leaves no room for reasoning.
    (bound,) = answers(thinking.engine, ask({"guided_choice": ["yes"]}))
    assert (bound.text, bound.reasoning) == ("yes", "")


# Gemma's format


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """With the tags of Gemma's template, as special tokens."""
    folder = tmp_path_factory.mktemp("gemma")
    return make_model(folder, template=GEMMA_TEMPLATE, markup=GEMMA_MARKUP, special_markup=True)


def test_gemmas_thought_channel_is_the_reasoning(gemma: Model) -> None:
    settings = {**written("<|channel>thought\nwhy\n<channel|>it is"), "max_new_tokens": 96}
    (finished,) = answers(gemma.engine, ask(settings, template_variables={"enable_thinking": True}))
    assert (finished.reasoning, finished.text.replace(" ", "")) == ("why", "itis7")
    (closed,) = ChoiceFactory(gemma.engine).create(ask(), 0.0)
    assert closed.session.prompt[-1] == gemma.ids["<channel|>"]


# Streams, statistics, deadlines


REQUESTS: dict[str, ChoicesRequest] = {
    "forced": ask(tools=TOOLS, forced_tools=("say.it",)),
    "required": ask({"temperature": 1.0}, tools=TOOLS, forced_tools=("add", "say.it")),
    "reasoning": ask(written("<think>\nwhy\n</think>\n\nit is")),
    "stop": ask({"ignore_eos": True, "temperature": 1.0}, stop=("a", "e", "\\n", " ")),
    "one call": ask({"max_new_tokens": 80}, tools=STRICT, parallel_tool_calls=False),
    "calls": ask({"max_new_tokens": 80}, tools=STRICT),
}


@pytest.mark.parametrize("kind", ["required", "reasoning", "stop", "calls"])
def test_a_stream_is_the_whole_answer_in_pieces(model: Model, kind: str) -> None:
    request = REQUESTS[kind]
    settings = {"top_logprobs": 0, **request.settings}
    if "call" in kind:
        settings["logit_bias"] = {model.ids["<tool_call>"]: 20.0}
    request = dataclasses.replace(request, settings=settings, logprobs=True)
    streamed = check_stream(outputs(model.engine, dataclasses.replace(request, stream=True)))
    (whole,) = answers(model.engine, request)
    assert comparable(streamed) == comparable(whole)


def test_tokens_are_those_of_the_answer_up_to_its_end(model: Model) -> None:
    request = ask(tools=TOOLS, forced_tools=("add",), logprobs=True)
    (choice,) = ChoiceFactory(model.engine).create(request, 0.0)
    (finished,) = answers(model.engine, request)
    # Every token of the call has its log-probability, and the EOS behind it is counted.
    text = b"".join(logprob.bytes for logprob in finished.logprobs).decode()
    assert text.lstrip(" ") == finished.tool_calls[0].arguments
    assert finished.stats.tokens == len(finished.logprobs) + 1 <= choice.session.settings.max_new_tokens


@pytest.mark.parametrize("kind", ["forced", "reasoning", "one call"])
def test_a_deadline_leaves_the_beginning_of_the_answer(model: Model, kind: str) -> None:
    request = dataclasses.replace(REQUESTS[kind], stream=True, partial=True)
    partial = check_stream(outputs(model.engine, request, max_steps=3))
    (whole,) = answers(model.engine, request)
    if partial.finish_reason is not None:
        assert comparable(partial) == comparable(whole)
        return
    assert partial.stats.steps == 3
    assert whole.reasoning.startswith(partial.reasoning) and whole.text.startswith(partial.text)
    for cut, call in zip(partial.tool_calls, whole.tool_calls, strict=False):
        assert (cut.name, call.arguments[: len(cut.arguments)]) == (call.name, cut.arguments)
