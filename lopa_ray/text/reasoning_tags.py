"""ReasoningTags: between which texts a model writes its reasoning, at the beginning of an answer."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.text.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """Tags around reasoning. White space after either tag has no meaning."""

    begin: str
    end: str
    tokens: tuple[str, ...]  # the special tokens that the tags may consist of


THINK = ReasoningTags("<think>", "</think>", ("<think>", "</think>"))
"""The tags of Qwen, which SDAR, LLaDA2 and Nemotron use too."""

GEMMA_THOUGHT = ReasoningTags("<|channel>thought", "<channel|>", ("<|channel>", "<channel|>"))
"""The thought channel of Gemma 4 and DiffusionGemma (Google, "Gemma 4 prompt formatting")."""


def reasoning_tags(template: ChatTemplate) -> ReasoningTags:
    """The tags of a chat template: the thought channel if the template has channels, `<think>` in all other cases."""
    return GEMMA_THOUGHT if "<|channel>" in template.source else THINK
