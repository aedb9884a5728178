"""Whether a prompt has opened the reasoning, as its text says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.choices.answer_format import answer_format
from cluster.choices.answer_parser import Answer
from cluster.choices.messages import ChoicesRequest
from lopa_ray.constraints.json_schema import schema_automaton
from lopa_ray.engine.session_factory import RenderedPrompt
from lopa_ray.text.tokenizer import Tokenizer
from support.tokenizer_folders import opened
from support.tool_checkpoint import SDAR_TEMPLATE, THINKING_TEMPLATE, write_tokenizer

pytestmark = pytest.mark.medium

CHAT = ({"role": "user", "content": "1 + 2 <think>"},)
TEXT = "why</think>so"
REASONING, CONTENT = Answer("so", "why"), Answer(TEXT)


def parsed(tokenizer: Tokenizer, prompt: RenderedPrompt, *, raw: bool = False) -> Answer:
    """What `TEXT` is behind a prompt."""
    parser = answer_format(
        ChoicesRequest("id", (), {}, raw=raw),
        tokenizer,
        prompt,
        lambda text: len(schema_automaton(text).transitions),
    ).new_parser()
    list(parser.update(TEXT, final=True))
    return parser.answer


@pytest.mark.parametrize("special_markup", [False, True])
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SDAR_TEMPLATE, CONTENT),
        (THINKING_TEMPLATE, REASONING),
        # However many tokens stand behind the tag, or make it up.
        (THINKING_TEMPLATE + "{{ '\n' * 20 }}", REASONING),
        ("{{ messages[0]['content'] }}<think>\n</think>\n", CONTENT),
        ("{{ messages[0]['content'] }} answer:", CONTENT),
    ],
)
def test_a_template_that_ends_with_the_tag_opens_the_reasoning(
    tmp_path: Path, template: str, expected: Answer, special_markup: bool
) -> None:
    write_tokenizer(tmp_path, template=template, special_markup=special_markup)
    tokenizer = opened(tmp_path)
    assert parsed(tokenizer, tokenizer.render_chat(CHAT)) == expected


def test_a_prompt_that_no_template_wrote_opens_nothing(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, template=THINKING_TEMPLATE)
    tokenizer = opened(tmp_path)
    text = "1 + 2 <think>\n"
    for prompt in (text, tokenizer.encode(text)):
        assert parsed(tokenizer, prompt, raw=True) == CONTENT
