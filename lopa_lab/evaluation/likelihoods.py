"""Likelihoods: what answers lm-evaluation-harness's requests for log-likelihoods."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from tqdm import tqdm

from lopa_lab.evaluation.engines import Groups, on_groups
from lopa_lab.evaluation.harness_requests import (
    CheckGreedy,
    cut_prefix,
    encode_pair,
    needs_greedy,
    rolling_windows,
)
from lopa_lab.evaluation.totals import Totals
from lopa_lab.requests import answered
from lopa_ray.engine.base import Engine
from lopa_ray.engine.likelihood import LikelihoodRequest, LogLikelihood, log_likelihoods
from lopa_ray.errors import SettingsError

Windows = Sequence[LikelihoodRequest]
"""Windows whose log-likelihoods add up to one request's log-likelihood."""


class Likelihoods:
    """Monte-Carlo bounds (see `LikelihoodSession`) on one or several groups."""

    def __init__(
        self, groups: Groups, mc_num: int, check_greedy: CheckGreedy, *, parse_special: bool
    ) -> None:
        """Raises SettingsError for what the model arguments of these names cannot be."""
        if not isinstance(mc_num, int) or isinstance(mc_num, bool) or mc_num < 1:
            raise SettingsError(f"mc_num: got {mc_num!r}; allowed: a whole number of draws, 1 or more")
        if not (isinstance(check_greedy, bool) or check_greedy == "auto"):
            raise SettingsError(f"check_greedy: got {check_greedy!r}; allowed: True, False, auto")
        self._groups, self._mc_num, self._check_greedy = groups, mc_num, check_greedy
        self._parse_special = parse_special
        self.totals: defaultdict[str, Totals] = defaultdict(Totals)
        """Totals by task."""

    def of_continuations(
        self, requests: list[Instance], cache: CacheHook, disable_tqdm: bool
    ) -> list[tuple[float, bool]]:
        """See `LopaRayLM.loglikelihood`."""
        windows = []
        for request, greedy in zip(requests, needs_greedy(requests, self._check_greedy), strict=True):
            prefix, target = encode_pair(
                self._groups.engines[0], *request.args, parse_special=self._parse_special
            )
            kept = cut_prefix(prefix, target, self._groups.engines[0].config.model.max_model_len)
            self.totals[request.task_name or ""].truncated_prompts += len(kept) < len(prefix)
            windows.append([LikelihoodRequest(kept, target, greedy)])
        answers: dict[int, tuple[float, bool]] = {}
        for index, (window,) in self._decode(requests, windows, disable_tqdm):
            answers[index] = window.value, bool(window.is_greedy)
            cache.add_partial("loglikelihood", requests[index].args, answers[index])
        return [answers[index] for index in range(len(requests))]

    def of_texts(self, requests: list[Instance], cache: CacheHook, disable_tqdm: bool) -> list[float]:
        """See `LopaRayLM.loglikelihood_rolling`."""
        windows = [
            [
                LikelihoodRequest(*window)
                for window in rolling_windows(
                    self._groups.engines[0], *request.args, parse_special=self._parse_special
                )
            ]
            for request in requests
        ]
        answers: dict[int, float] = {}
        for index, of_text in self._decode(requests, windows, disable_tqdm):
            answers[index] = math.fsum(window.value for window in of_text)  # in whatever order they ended
            cache.add_partial("loglikelihood_rolling", requests[index].args, answers[index])
        return [answers[index] for index in range(len(requests))]

    def _decode(
        self, instances: Sequence[Instance], windows: Sequence[Windows], disable_tqdm: bool
    ) -> Iterator[tuple[int, list[LogLikelihood]]]:
        """(index, log-likelihoods of its windows) as requests end. Raises what ended one without an answer."""
        began = time.perf_counter()
        asked = [(index, window) for index, of_request in enumerate(windows) for window in of_request]

        def run(engine: Engine, part: range) -> Iterator[tuple[int, LogLikelihood]]:
            requests = [asked[at][1] for at in part]
            seed = engine.config.decode.seed
            likelihoods = log_likelihoods(engine, requests, mc_num=self._mc_num, seed=seed)
            for at, answer in answered(likelihoods):
                yield asked[part[at]][0], answer

        ended: list[list[LogLikelihood]] = [[] for _ in windows]
        with tqdm(total=len(asked), disable=disable_tqdm, desc="Log-likelihoods") as progress:
            for index, answer in on_groups(self._groups.engines, len(asked), run):
                ended[index].append(answer)
                progress.update()
                if len(ended[index]) == len(windows[index]):
                    yield index, ended[index]
        yield from ((index, []) for index, of_request in enumerate(windows) if not of_request)
        for instance, of_request in zip(instances, ended, strict=True):
            self.totals[instance.task_name or ""].add(of_request)
        seconds = time.perf_counter() - began
        for task in {instance.task_name or "" for instance in instances}:
            self.totals[task].seconds += seconds

    def totals_by_task(self) -> dict[str, dict[str, Any]]:
        """The totals of each task, with a description of the likelihoods, for the results' JSON."""
        method = f"Monte-Carlo bound, LLaDA (arXiv 2502.09992) equation 6, {self._mc_num} draws"
        return {task: {"loglikelihood": method, **asdict(totals)} for task, totals in self.totals.items()}
