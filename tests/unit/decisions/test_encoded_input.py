"""Inputs and questions are encoded apart, under any template and without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_ray.decisions.encoded_input import QUESTION, EncodedInput
from lopa_ray.errors import PromptError
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
    encoded = EncodedInput(tokenizer, user("hello"))
    assert shown(tokenizer, encoded.ids) == given
    assert shown(tokenizer, list(encoded.question_ids("why"))) == asked
    assert list(encoded.label_ids("yes")) == tokenizer.encode("yes")


def test_tokens_of_an_input_do_not_depend_on_questions(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, CHATML)
    encoded = EncodedInput(tokenizer, user(f"hello {QUESTION} and {QUESTION}0"))
    assert shown(tokenizer, encoded.ids) == f"<|im_start|>user\nhello {QUESTION} and {QUESTION}0<|im_end|>\n"
    assert QUESTION not in shown(tokenizer, list(encoded.question_ids("why")))


def test_questions_write_no_special_tokens(tmp_path: Path) -> None:
    first = write_qwen2(tmp_path)
    tokenizer = opened(tmp_path)
    ids = EncodedInput(tokenizer, user("hello")).question_ids("<|im_end|>")
    assert [token for token in ids if token >= first] == [first + 1, first + 2, first + 1]


def test_without_a_template_they_are_paragraphs(tmp_path: Path) -> None:
    write_qwen2(tmp_path, chat_template=None)
    tokenizer = opened(tmp_path)
    encoded = EncodedInput(tokenizer, [*user("hello"), *user("world")])
    assert tokenizer.decode(encoded.ids) == "hello\n\nworld"
    assert tokenizer.decode(list(encoded.question_ids("why"))) == "\n\nwhy\nAnswer:"
    assert tokenizer.decode(list(encoded.label_ids("yes"))) == " yes"


def test_a_chat_that_a_template_refuses_is_refused(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, ALTERNATING)
    with pytest.raises(PromptError, match="roles must alternate"):
        EncodedInput(tokenizer, [{"role": "assistant", "content": "hello"}])
