"""Inputs and questions are encoded apart, under any template and without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_ray.decisions.encoded_input import QUESTION, EncodedInput
from lopa_ray.decoding.question_tokens import QuestionTokens
from lopa_ray.errors import PromptError
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.decision_prompt import DecisionQuestion
from lopa_ray.text.tokenizer import Tokenizer
from support.tokenizer_folders import CHATML, opened, shown, user, with_template, write_qwen2

ALTERNATING = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ message['role'] }}]{{ message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
LAST_MARKED = (
    "{% for message in messages %}{{ message['content'] }}{% if loop.last %}(last){% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
THINKING = CHATML.replace(
    "'<|im_start|>assistant\n'", "'<|im_start|>assistant\n' + ('' if enable_thinking is false else '?')"
)


def encoded_input(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> EncodedInput:
    assert tokenizer.mask_token_id is not None
    return EncodedInput(tokenizer, messages, Vocabulary(512, tokenizer.mask_token_id, eos_token_id=0))


def question(encoded: EncodedInput, text: str = "why") -> QuestionTokens:
    return encoded.question("questions[0]", DecisionQuestion(text, ("yes",)), max_model_len=512)


@pytest.mark.parametrize(
    ("template", "given", "asked"),
    [
        (
            CHATML,
            "<|im_start|>user\nhello<|im_end|>\n",
            "<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n",
        ),
        (ALTERNATING, "[user]hello\n\n", "why[assistant]"),
        (LAST_MARKED, "hello", "why(last)<|im_start|>"),
        (
            THINKING,
            "<|im_start|>user\nhello<|im_end|>\n",
            "<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
    ids=["chatml", "alternating", "last", "thinking"],
)
def test_a_question_follows_the_input(tmp_path: Path, template: str, given: str, asked: str) -> None:
    tokenizer = with_template(tmp_path, template)
    encoded = encoded_input(tokenizer, user("hello"))
    assert shown(tokenizer, encoded.ids) == given
    assert shown(tokenizer, list(question(encoded).asked)) == asked
    assert list(question(encoded).values[0]) == tokenizer.encode("yes")


def test_tokens_of_an_input_do_not_depend_on_questions(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, CHATML)
    encoded = encoded_input(tokenizer, user(f"hello {QUESTION} and {QUESTION}0"))
    assert shown(tokenizer, encoded.ids) == f"<|im_start|>user\nhello {QUESTION} and {QUESTION}0<|im_end|>\n"
    assert QUESTION not in shown(tokenizer, list(question(encoded).asked))


def test_questions_write_no_special_tokens(tmp_path: Path) -> None:
    first = write_qwen2(tmp_path)
    tokenizer = opened(tmp_path)
    ids = question(encoded_input(tokenizer, user("hello")), "<|im_end|>").asked
    assert [token for token in ids if token >= first] == [first + 1, first + 2, first + 1]


def test_without_a_template_they_are_paragraphs(tmp_path: Path) -> None:
    write_qwen2(tmp_path, chat_template=None)
    tokenizer = opened(tmp_path)
    encoded = encoded_input(tokenizer, [*user("hello"), *user("world")])
    assert tokenizer.decode(encoded.ids) == "hello\n\nworld"
    assert tokenizer.decode(list(question(encoded).asked)) == "\n\nwhy\nAnswer:"
    assert tokenizer.decode(list(question(encoded).values[0])) == " yes"


def test_a_chat_that_a_template_refuses_is_refused(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, ALTERNATING)
    with pytest.raises(PromptError, match="roles must alternate"):
        encoded_input(tokenizer, [{"role": "assistant", "content": "hello"}])
