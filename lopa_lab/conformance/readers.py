"""Readers of the settings of recorded decodes, which return this project's own: a class and its arguments."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from lopa_lab.conformance.cases import MalformedCaseError, UnsupportedCaseError
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.protocol.sampling_params import Ranking

RecordedSettings: TypeAlias = tuple[type[GenerationSettings], dict[str, Any]]
"""A class and its arguments."""


def block_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of LoPA's decoder (`algorithm` lopa or d2f), and of D2F's for LLaDA. Raises as `recorded_settings`."""
    pop = recorded.pop
    algorithm = pop("algorithm", str, default="d2f")
    block_size = pop("block_size", int)
    if block_size < 1:
        raise MalformedCaseError(f"settings.block_size: got {block_size}; allowed: 1 and more")
    top_p = pop("top_p", int, float, default=None)
    ranking = pop("sampling_strategy", str, default="default")
    recorded.require_greedy()
    common: dict[str, Any] = {
        "block_size": block_size,
        "max_new_tokens": pop("max_new_tokens", int) // block_size * block_size,
        "block_add_threshold": pop("block_add_threshold", int, float),
        "decoded_token_threshold": pop("decoded_token_threshold", int, float),
        "confidence_threshold": recorded.pop_threshold("skip_threshold"),
        # The published code uses its default for an unknown strategy, including "margin_confidence".
        "ranking": ranking if ranking in ("margin", "neg_entropy") else "probability",
        "window_attention": "full" if pop("use_full_attention", bool, default=False) else "block_causal",
        "stop_at_eos": False,
        "top_p": None if top_p is None or top_p >= 1 else top_p,
        "top_k": pop("top_k", int, default=None),
    }
    pop("max_length", int, default=None)
    single = algorithm == "d2f"
    lookaheads = pop("branching_factor", int, **({"default": 1} if single else {}))
    ratio = min(1.0, max(0.0, pop("branch_topp", int, float, default=1.0)))
    alpha = min(1.0, max(0.0, pop("selection_conf_alpha", int, float, default=0.0)))
    base_evaluated = pop("branch_verification_mode", bool, default=True)
    competes = pop("base_branch_competition", bool, default=True)
    base_wins = pop("verification_force_base_winner", bool, default=False)
    if single:
        return D2FSettings, common
    if lookaheads <= 1 or not competes:
        lookaheads = 0
    if not base_evaluated or base_wins:
        raise UnsupportedCaseError("here the anchor is always evaluated, and wins by its confidence alone")
    return LopaSettings, {
        **common,
        "num_branches": lookaheads + 1,
        "branch_confidence": f"bottom({ratio})",
        "creation_confidence_alpha": alpha,
    }


Cache: TypeAlias = Literal["none", "prefix", "dual"]

_DREAM_RANKING: dict[str, Ranking] = {
    "entropy": "neg_entropy",
    "maskgit_plus": "probability",
    "topk_margin": "margin",
}


def dream_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of Dream's sampler, and of Fast-dLLM's for Dream, with a cache or without. Raises as `recorded_settings`."""
    pop = recorded.pop
    algorithm, steps = pop("alg", str), pop("steps", int, default=None)
    threshold = pop("threshold", int, float, default=None)
    dual = pop("dual_cache", bool, default=None)
    values: dict[str, Any] = {
        "block_size": pop("block_length", int, default=None),
        "max_new_tokens": pop("max_new_tokens", int),
        "eps": pop("eps", float, default=1e-3),
        "stop_at_eos": False,
    }
    recorded.require_greedy()
    cache: Cache = "none" if dual is None else "dual" if dual else "prefix"
    if algorithm == "confidence_threshold":
        if threshold is None:
            raise MalformedCaseError("settings.threshold: missing; alg confidence_threshold needs it")
        # With a cache the published code takes steps for a limit that is never reached.
        step_limit = steps if dual is None else None
        values |= {"cache": cache, "confidence_threshold": threshold, "steps": step_limit}
        return FastDllmSettings, values
    if algorithm not in _DREAM_RANKING:
        raise UnsupportedCaseError(
            f"alg {algorithm!r} cannot be compared or is unknown; known: {', '.join(_DREAM_RANKING)}"
        )
    values |= {"steps": steps, "ranking": _DREAM_RANKING[algorithm]}
    if dual is None:
        return VanillaSettings, values
    return FastDllmSettings, {**values, "cache": cache, "fill": "schedule"}


_LLADA_CACHES: dict[str, Cache] = {
    "generate": "none",
    "generate_with_prefix_cache": "prefix",
    "generate_with_dual_cache": "dual",
}


def llada_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of LLaDA's sampler and of Fast-dLLM's for LLaDA; the kind names the cache. Raises as `recorded_settings`."""
    pop = recorded.pop
    steps, threshold = pop("steps", int), pop("threshold", int, float, default=None)
    factor = pop("factor", int, float, default=None)
    values: dict[str, Any] = {
        "block_size": pop("block_length", int),
        "max_new_tokens": pop("gen_length", int),
        "stop_at_eos": False,
    }
    if pop("remasking", str, default="low_confidence") != "low_confidence":
        raise UnsupportedCaseError("random remasking cannot be compared: the draws differ")
    recorded.require_greedy()
    cache = _LLADA_CACHES[recorded.row["kind"]]
    if factor is not None:
        filled: dict[str, Any] = {"fill": "factor", "factor": float(factor)}
    elif threshold is not None:
        filled = {"confidence_threshold": threshold}
    elif cache == "none":
        return VanillaSettings, {**values, "steps": steps}
    else:
        filled = {"fill": "schedule", "steps": steps}
    return FastDllmSettings, {**values, **filled, "cache": cache}


def sdar_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of SDAR's decoders, which draw; recorded with the most likely token in place of each draw."""
    pop = recorded.pop
    block, max_new_tokens = recorded.pop_whole_blocks()
    values: dict[str, Any] = {
        "remasking": pop("remasking_strategy", str),
        "block_size": block,
        "denoising_steps": pop("denoising_steps", int),
        "max_new_tokens": max_new_tokens,
        "sdar_confidence": pop("temperature", int, float, default=1.0),
        **recorded.pop_filters(),
        "stop_at_eos": False,
    }
    thresholds = {
        "confidence_threshold": recorded.pop_threshold("confidence_threshold", default=None),
        "eb_threshold": pop("eb_threshold", int, float, default=None),
    }
    values |= {name: threshold for name, threshold in thresholds.items() if threshold is not None}
    # Only these ids end an answer there; without any, none does.
    values |= {"ignore_eos": True, "stop_token_ids": tuple(pop("stopping_criteria_idx", list, default=[]))}
    if recorded.row["kind"] == "sdar_eval":
        # They do not change confidences in the published code; tokens are the same.
        values |= {"top_k": None, "top_p": None}
    return BlockDiffusionSettings, values


def llada2_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of LLaDA2.0's decoder, recorded with the most likely tokens in place of draws. Raises as
    `recorded_settings`."""
    pop = recorded.pop
    length, (block, max_new_tokens) = recorded.row["settings"].get("gen_length"), recorded.pop_whole_blocks()
    steps, minimal_topk = pop("steps", int), pop("minimal_topk", int, default=1)
    if minimal_topk < 1:
        raise MalformedCaseError(f"settings.minimal_topk: got {minimal_topk}; allowed: 1 and more")
    # 0, or less, divides no logits there.
    temperature = pop("temperature", int, float, default=0)
    # From the requested length. With none, no call is made there, and masks are returned.
    steps = min(steps, length // minimal_topk)
    return BlockDiffusionSettings, {
        "block_size": block,
        "denoising_steps": max(1, steps),
        "max_new_tokens": max_new_tokens if steps > 0 else 0,
        "confidence_threshold": recorded.pop_threshold("threshold"),
        "sdar_confidence": temperature if temperature > 0 else 1.0,
        **recorded.pop_filters(),
        "stop_at_eos": pop("eos_early_stop", bool, default=False),
        # There is no cache there, so no call for it either.
        "fuse_store": True,
    }


def llada21_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of LLaDA2.1's decoder. It takes `steps` and `minimal_topk`, and has no use for them."""
    pop = recorded.pop
    block, max_new_tokens = recorded.pop_whole_blocks()
    pop("steps", int, default=None), pop("minimal_topk", int, default=None)
    recorded.require_greedy()
    return EditingSettings, {
        "block_size": block,
        "max_new_tokens": max_new_tokens,
        "confidence_threshold": recorded.pop_threshold("threshold"),
        "editing_threshold": recorded.pop_threshold("editing_threshold"),
        "max_post_steps": pop("max_post_steps", int, default=16),
        "num_to_transfer": pop("num_to_transfer", int, default=1),
        "stop_at_eos": pop("eos_early_stop", bool, default=False),
    }


def localleap_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of LocalLeap on LLaDA and Dream. Without a threshold LLaDA's follow a schedule."""
    pop = recorded.pop
    is_dream = recorded.row["kind"].startswith("localleap_dream")
    values: dict[str, Any] = {
        "block_size": pop("block_length", int),
        "max_new_tokens": pop("max_new_tokens" if is_dream else "gen_length", int),
        "stop_at_eos": False,
    }
    # What an early stop sets to EOS no call fills, so it is not compared.
    pop("early_stop", bool, default=False), pop("eos_id", int, default=None)
    steps, threshold = pop("steps", int), recorded.pop_threshold("threshold", default=None)
    relaxed, radius = recorded.pop_threshold("relaxed_threshold", default=None), pop("radius", int)
    if threshold is None:
        return VanillaSettings, {**values, "steps": steps}
    return FastDllmSettings, {
        **values,
        "cache": "none",
        "confidence_threshold": threshold,
        "relaxed_threshold": relaxed,
        "anchor_radius": radius,
    }
