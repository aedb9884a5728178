"""Checks of a request before its session begins: its tokens, what it gives of the answer, and its constraint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint, ConstraintState
from lopa_ray.decoding.given_tokens import GivenTokens
from lopa_ray.errors import PromptError, SettingsError
from lopa_ray.protocol.vocabulary import Vocabulary


def check_decoder(settings: GenerationSettings, vocabulary: Vocabulary, denoises_canvases: bool) -> None:
    """Raises SettingsError for a decoder that fills masks and a model without a mask token, or the reverse, and for one
    whose forwards have parts of blocks that the model needs whole."""
    size, attention = vocabulary.routing_block, settings.prompt_attention
    has_parts = attention.kind != "blocks" or getattr(settings, "sub_block_cache", False)
    if size and (has_parts or attention.block_size % size):
        raise SettingsError(
            f"decoder: got {settings.decoder}, but this model chooses experts for whole blocks of {size} positions, "
            f"counted from 0; use a decoder with such blocks, as indel, and a multiple of {size} as block_size",
            setting="decoder",
        )
    if denoises_canvases == bool(vocabulary.canvas_length):
        return
    why = (
        "is for models whose canvases begin as random tokens; this model fills masks; use another decoder"
        if denoises_canvases
        else "fills masks; this model has no mask token, and its canvases begin as random tokens; use decoder renoising"
    )
    raise SettingsError(f"decoder: got {settings.decoder}, which {why}", setting="decoder")


def check_prompt(prompt: Sequence[int], vocabulary: Vocabulary, keeps_masks: bool) -> None:
    """Raises PromptError for an empty prompt, ids outside the vocabulary, or mask tokens that are not kept."""
    if not prompt:
        raise PromptError("the prompt is empty; give at least one token")
    for index, token in enumerate(prompt):
        if not 0 <= token < vocabulary.size:
            raise PromptError(
                f"prompt token {index} is {token}, but the vocabulary has ids 0 to {vocabulary.size - 1}; "
                "was it made with another tokenizer?"
            )
        if token == vocabulary.mask_token_id and not keeps_masks:
            raise PromptError(
                f"prompt token {index} is the mask token ({token}), which stands for an empty position; remove it"
            )


def check_known(tokens: Iterable[int], vocabulary: Vocabulary, where: str) -> None:
    """Raises PromptError for ids outside of the vocabulary and for the mask token."""
    for token in tokens:
        if not _is_generated(token, vocabulary):
            raise PromptError(f"{where} has the token {token}; {_allowed(vocabulary)}")


def check_generated(tokens: Iterable[int], vocabulary: Vocabulary, setting: str, noun: str = "") -> None:
    """Raises SettingsError, naming `setting`, for a token that is never generated."""
    for token in tokens:
        if not _is_generated(token, vocabulary):
            raise SettingsError(
                f"{setting}: got {noun}{token}, which is never generated; {_allowed(vocabulary)}",
                setting=setting,
            )


def _is_generated(token: int, vocabulary: Vocabulary) -> bool:
    return 0 <= token < vocabulary.size and token != vocabulary.mask_token_id


def _allowed(vocabulary: Vocabulary) -> str:
    return f"allowed: ids 0 to {vocabulary.size - 1} but for the mask token ({vocabulary.mask_token_id})"


def check_given(
    given: GivenTokens, settings: GenerationSettings, vocabulary: Vocabulary, end_token_ids: Collection[int]
) -> None:
    """Raises SettingsError for given tokens that are outside the vocabulary, masks, or ends in the middle of an answer,
    that exceed `max_new_tokens`, or that leave no hole. A suffix, which is not returned, may have ends."""
    name, most = given.setting, num_positions(settings.max_new_tokens, vocabulary)
    ends = frozenset(end_token_ids if given.setting == "given_parts" else ())
    last = most
    while given.tokens.get(last - 1) in ends:
        last -= 1
    for at, token in given.tokens.items():
        if not 0 <= token < vocabulary.size:
            what = f"which is no token; allowed: ids 0 to {vocabulary.size - 1}"
        elif token == vocabulary.mask_token_id:
            what = "the mask token, which stands for a position that is not decided; remove it"
        elif token in ends and at < last:
            what = "which ends an answer; allowed: at the last of its positions, after all others"
        else:
            continue
        raise SettingsError(f"{name}: got token {token} at position {at} of the answer, {what}", setting=name)
    if given.end > most:
        raise SettingsError(
            f"{name}: the last part ends at position {given.end} of the answer; max_new_tokens is {most}: raise it to "
            f"{given.end} or more, or shorten what is given",
            setting=name,
        )
    if given.tokens and not given.holes_within(settings.max_new_tokens):
        raise SettingsError(
            f"{name}: got all {most} tokens of the answer, which leaves no hole to fill; raise max_new_tokens, or "
            "leave positions out",
            setting=name,
        )


def num_positions(length: int, vocabulary: Vocabulary) -> int:
    """The positions that an answer of `length` tokens is decoded at: of whole canvases, where the model has some."""
    size = vocabulary.canvas_length or 1
    return -(-length // size) * size


def check_draft(
    draft: Sequence[int],
    given: GivenTokens,
    settings: GenerationSettings,
    vocabulary: Vocabulary,
    end_token_ids: Collection[int],
) -> None:
    """Raises SettingsError for a draft that is longer than what it is a draft of, that has ids outside the vocabulary,
    or an end before `min_tokens`."""
    length = given.holes[0].stop if given.setting == "suffix" else settings.max_new_tokens
    if len(draft) > (most := num_positions(length, vocabulary)):
        raise SettingsError(
            f"draft: got {len(draft)} tokens; max_new_tokens leaves room for {most}: raise it, or shorten the draft",
            setting="draft",
        )
    for at, token in enumerate(draft):
        if not 0 <= token < vocabulary.size:
            what = f"which is no token; allowed: ids 0 to {vocabulary.size - 1}"
        elif token in end_token_ids and at < settings.min_tokens:
            what = f"which ends the answer before min_tokens ({settings.min_tokens}); remove it, or lower min_tokens"
        else:
            continue
        raise SettingsError(f"draft: got token {token} at position {at}, {what}", setting="draft")


def check_holes_see(given: GivenTokens, view_stop: int, settings: GenerationSettings) -> None:
    """Raises SettingsError if given tokens lie after `view_stop`, the offset where the view of the first hole ends."""
    if given.end > view_stop:
        raise SettingsError(
            f"{given.setting}: got tokens up to position {given.end} of the answer, after a hole that begins at "
            f"position {given.holes[0].start}; under these settings of decoder {settings.decoder} it sees nothing from "
            f"position {view_stop} on, so what is given after a hole has to stand before that; use a larger "
            "block_size if the model allows one, a shorter hole, or a decoder and a model that attend to the whole "
            "answer",
            setting=given.setting,
        )


def check_constraint(
    constraint: Constraint | None,
    empty_answer: ConstraintState | None,
    settings: GenerationSettings,
    given: GivenTokens,
) -> None:
    """Raises SettingsError if the settings need a constraint and there is none, or if no answer can keep it.
    `empty_answer`: the constraint laid over an answer of which only what is `given` is decided."""
    setting = settings.constraint_setting
    if (constraint is None) != (setting is None):
        wrong = (
            "a session under guided_* or bad_words needs the constraint that belongs to them, and no other one; "
            "make sessions with Engine.create_session or SessionFactory"
        )
    elif constraint is None or empty_answer is None or empty_answer.satisfiable:
        return
    elif given.tokens:
        wrong = (
            f"{given.setting}: no answer with what is given matches {setting}, which the whole answer has to match, "
            "given text included; change one of them, or make the holes larger"
        )
        setting = given.setting
    elif (shortest := constraint.min_tokens()) is None:
        wrong = "the pattern or schema matches no text that this model's tokens can spell without bad_words; loosen it"
    elif shortest > settings.max_new_tokens:
        wrong = (
            f"the shortest answer that matches the pattern or schema has {shortest} tokens; max_new_tokens is "
            f"{settings.max_new_tokens}: raise it to {shortest} or more, or loosen the pattern"
        )
    else:
        wrong = (
            f"no answer of {settings.min_tokens} to {settings.max_new_tokens} tokens matches the pattern or schema; "
            "lower min_tokens or leave it out"
        )
    raise SettingsError(wrong, setting=setting)
