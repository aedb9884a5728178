"""The kinds of recorded decodes: how the settings of a row are read, and how it is compared with its replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from lopa_lab.conformance.canvases import RecordedRenoisingSession, compare_canvases, renoising_settings
from lopa_lab.conformance.cases import Case, Difference, MalformedCaseError, UnsupportedCaseError
from lopa_lab.conformance.compare import (
    compare_block_decode,
    compare_calls,
    compare_edited_blocks,
    compare_soft_blocks,
    compare_uncached_blocks,
    compare_windows,
)
from lopa_lab.conformance.credit import compare_credit, credit_settings, published_credit
from lopa_lab.conformance.indel import compare_indels, indel_settings
from lopa_lab.conformance.klass import compare_klass, klass_settings, published_klass
from lopa_lab.conformance.multi_block import compare_multi_block, multi_block_settings
from lopa_lab.conformance.nemotron import (
    autoregressive_settings,
    compare_nemotron,
    nemotron_settings,
    speculation_settings,
)
from lopa_lab.conformance.published_dmax import dmax_settings, published_dmax
from lopa_lab.conformance.published_s2d2 import published_s2d2
from lopa_lab.conformance.readers import (
    RecordedSettings,
    block_settings,
    dream_settings,
    llada2_settings,
    llada21_settings,
    llada_settings,
    localleap_settings,
    sdar_settings,
)
from lopa_lab.conformance.replayed import ReplayedRun
from lopa_lab.conformance.row_settings import RowSettings
from lopa_lab.conformance.s2d2 import compare_s2d2, s2d2_d2f_settings, s2d2_editing_settings, s2d2_settings
from lopa_lab.conformance.sub_blocks import compare_sub_blocks, sub_block_settings
from lopa_lab.conformance.wino import compare_wino, wino_settings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import SettingsError

Published: TypeAlias = Callable[[DecodeSession, dict[str, Any]], DecodeSession] | None
"""Takes a session that has not begun, and a row; returns one that differs from ours where the published code does."""

Compare: TypeAlias = Callable[[Case, ReplayedRun], Iterator[Difference]]


class Rows(NamedTuple):
    """Recorded rows that are read and compared in the same way."""

    settings: Callable[[RowSettings], RecordedSettings]
    compare: Compare
    kinds: str  # apart by spaces
    published: Published = None


ROWS = (
    Rows(block_settings, compare_block_decode, "lopa d2f"),
    Rows(block_settings, compare_windows, "d2f_llada"),
    Rows(
        dream_settings,
        compare_windows,
        "vanilla_dream fast_dream_nocache_threshold fast_dream_prefix_cache fast_dream_prefix_cache_entropy "
        "fast_dream_dual_cache fast_dream_dual_cache_entropy",
    ),
    Rows(llada_settings, compare_windows, "generate generate_with_prefix_cache generate_with_dual_cache"),
    Rows(
        sdar_settings,
        compare_windows,
        "sdar_dynamic sdar_static sdar_sequential sdar_stop sdar_confidence sdar_edge sdar_topk1 sdar_eval "
        "sdar_entropy_jetengine sdar_moe_dynamic sdar_moe_static sdar_moe_sequential sdar_moe_stop sdar_moe_edge",
    ),
    Rows(
        localleap_settings,
        compare_calls,
        "localleap_llada localleap_llada_edge localleap_llada_eos localleap_dream localleap_dream_edge",
    ),
    Rows(
        llada2_settings,
        compare_uncached_blocks,
        "llada2_threshold llada2_steps llada2_eos llada2_eos_early llada2_edge",
    ),
    Rows(
        multi_block_settings,
        compare_multi_block,
        "mbd_llada2 mbd_llada2_edit mbd_llada2_eos mbd_llada2_edge mbd_llada21 mbd_llada21_eos mbd_llada21_edge "
        "mbd_sdar mbd_sdar_kw mbd_sdar_eos mbd_sdar_edge",
    ),
    Rows(
        llada21_settings,
        compare_edited_blocks,
        "llada21_quality llada21_speed llada21_default llada21_other llada21_eos llada21_edge",
    ),
    Rows(
        indel_settings,
        compare_indels,
        "llada22_budget llada22_chain llada22_cumulative llada22_default llada22_edge llada22_eos llada22_threshold",
    ),
    Rows(
        nemotron_settings, compare_nemotron, "nld_threshold nld_schedule nld_full_context nld_budget nld_stop"
    ),
    Rows(speculation_settings, compare_nemotron, "nld_spec nld_spec_lora"),
    Rows(autoregressive_settings, compare_nemotron, "nld_ar"),
    Rows(sub_block_settings, compare_sub_blocks, "fast_dllm_v2 fast_dllm_v2_cache fast_dllm_v2_eos"),
    Rows(dmax_settings, compare_soft_blocks, "dmax_threshold dmax_early_stop dmax_edge", published_dmax),
    Rows(
        renoising_settings,
        compare_canvases,
        "dg_default dg_maxsteps dg_stopping dg_temperature dg_eos",
        RecordedRenoisingSession,
    ),
    Rows(
        credit_settings,
        compare_credit,
        "credit_full credit_full_dual credit_full_prefix credit_block_causal credit_shift",
        published_credit,
    ),
    Rows(klass_settings, compare_klass, "klass_llada klass_dream", published_klass),
    Rows(wino_settings, compare_wino, "wino_llada"),
    Rows(
        s2d2_settings,
        compare_s2d2,
        "s2d2_sdar_edge s2d2_sdar_draftver s2d2_sdar_hystx s2d2_sdar_ucbx s2d2_sdar_cache s2d2_sdar_dyn s2d2_sdar_hyst "
        "s2d2_sdar_paper s2d2_sdar_seeded s2d2_sdar_span s2d2_sdar_stat s2d2_sdar_stop s2d2_sdar_ucb",
        published_s2d2,
    ),
    Rows(
        s2d2_editing_settings,
        compare_s2d2,
        "s2d2_llada21_edge s2d2_llada21_eos s2d2_llada21_hyst s2d2_llada21_paper s2d2_llada21_pubmask "
        "s2d2_llada21_score s2d2_llada21_seeded s2d2_llada21_span",
        published_s2d2,
    ),
    Rows(s2d2_d2f_settings, compare_s2d2, "s2d2_d2f_llada s2d2_d2f_dream", published_s2d2),
)
BY_KIND = {kind: rows for rows in ROWS for kind in rows.kinds.split()}


def recorded_settings(case: Case) -> GenerationSettings:
    """The settings that reproduce a case. Raises MalformedCaseError and UnsupportedCaseError."""
    if case.kind not in BY_KIND:
        raise UnsupportedCaseError(
            f"{case.kind!r} is not implemented; known: {', '.join([*BY_KIND, 'forward'])}"
        )
    recorded = RowSettings(case.row)
    settings, values = BY_KIND[case.kind].settings(recorded)
    recorded.check_all_popped()
    try:
        return settings(**values)
    except SettingsError as error:
        raise UnsupportedCaseError(f"settings refused: {error}") from None


def published_session(case: Case, session: DecodeSession) -> DecodeSession:
    """The session that decodes as the published code, in place of one that has not begun."""
    published = BY_KIND[case.kind].published
    return session if published is None else published(session, case.row)


def compare_decode(case: Case, run: ReplayedRun) -> list[Difference]:
    """All that is not as recorded. Raises MalformedCaseError for a row that cannot be compared."""
    try:
        return list(BY_KIND[case.kind].compare(case, run))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise MalformedCaseError(f"cannot compare: {type(error).__name__}: {error}") from None
