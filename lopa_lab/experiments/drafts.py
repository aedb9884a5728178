"""`lopa experiment drafts`: How many steps does a draft of the answer save?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import Figures, Outcomes, column
from lopa_lab.experiments.run.workbench import Workbench, graded
from lopa_lab.records.figure import error_bars
from lopa_lab.records.intervals import estimate
from lopa_lab.records.points_log import Point
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.protocol.vocabulary import Vocabulary

WRONG = 0.05  # share of a draft's tokens that are replaced, and one at least

SETTINGS: dict[str, dict[str, Any]] = {
    "editing": {"decoder": "editing", "block_size": 32},
    "multi_block": {"decoder": "multi_block", "block_size": 32, "editing_threshold": 0.9},
    "dmax": {"decoder": "dmax", "block_size": 32},
    "indel": {"decoder": "indel", "block_size": 32},
}
"""Settings, by decoder; the others are the run's, or the decoder's defaults."""

STARTS = ("masks", "draft")


class Drafts(Experiment):
    """See the module."""

    problems = 100
    method = (
        "A decoder's answer from masks, with 5 % of its tokens (at least one) replaced by random ones, is the draft "
        "that the same decoder revises. Steps: forward passes per answer. Same answer: the tokens of the answer from "
        "masks come back. All have blocks of 32. The model was trained to fill masks, and not to edit."
    )

    def points(self) -> Sequence[Point]:
        return [{"decoder": name} for name in SETTINGS]

    def measure(self, bench: Workbench, point: Point) -> Data:
        """The outcomes of both starts, and whether answers are the same."""
        wanted = bench.settings(**SETTINGS[str(point["decoder"])])
        masks = bench.decode(wanted)
        vocabulary = bench.engine.vocabulary
        drafted = [
            wanted.replace(draft=_with_errors(result, vocabulary, seed)) for seed, result in enumerate(masks)
        ]

        def revised(_: Any, index: int) -> Any:
            return bench.engine.create_session(bench.problems[index].question, drafted[index])

        drafts = bench.decode(wanted, make_session=revised)
        return {
            "masks": graded(bench.problems, masks),
            "draft": graded(bench.problems, drafts),
            "same": [int(a.token_ids == b.token_ids) for a, b in zip(masks, drafts, strict=True)],
        }

    def finding(self, record: ExperimentRecord) -> Finding:
        """Steps and scores from drafts against those from masks."""
        figures, resamples = _figures(record), record.resamples
        steps = {key: resamples.mean(record.data(decoder=key[0])[key[1]]["steps"]) for key in figures.tpf}
        same = {name: 100 * resamples.mean(record.data(decoder=name)["same"]) for name in SETTINGS}
        shares = {name: steps[name, "draft"] / steps[name, "masks"] for name in SETTINGS}
        least = min(shares, key=lambda name: float(shares[name][0]))
        of_least = (
            f"{estimate(steps[least, 'draft']):.1f} steps in place of {estimate(steps[least, 'masks']):.1f}"
        )
        headline = f"With {least}, an answer with 5 % of its tokens wrong takes {of_least} from masks."
        others = ", ".join(f"{name} {estimate(100 * shares[name]):.0f} %" for name in SETTINGS)
        text = f"{headline} Steps from the draft, of those from masks: {others}."
        table = {"decoder": list(SETTINGS)}
        for start in STARTS:
            table[f"steps from {start}"] = column((steps[name, start] for name in SETTINGS), ".1f")
        table["draft ÷ masks"] = column(shares.values(), ".2f")
        for start in STARTS:
            table[f"score % from {start}"] = column((figures.score[name, start] for name in SETTINGS), ".1f")
        table["same answer %"] = column(same.values(), ".1f")
        return Finding(text, table, headline)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Steps of each decoder, from masks and from a draft."""
        (axis,) = axes
        names = list(SETTINGS)
        for index, start in enumerate(STARTS):
            means = [record.resamples.mean(record.data(decoder=name)[start]["steps"]) for name in names]
            places = [at + 0.1 * index for at in range(len(names))]
            style: dict[str, Any] = {"markersize": 4, "label": f"from {start}"}
            error_bars(axis, places, [estimate(mean) for mean in means], index, line="", **style)
        axis.set_xticks(range(len(names)), names)
        axis.set_ylabel("steps per answer")
        axis.set_ylim(bottom=0)
        axis.figure.legend(*axis.get_legend_handles_labels(), loc="outside upper left", ncols=2)


def _with_errors(result: GenerationResult, vocabulary: Vocabulary, seed: int) -> list[int]:
    """The ids of an answer, of which some are replaced by others that are neither masks nor the end."""
    draw, ids = random.Random(seed), list(result.token_ids)
    kept = {vocabulary.mask_token_id, vocabulary.eos_token_id, *vocabulary.stop_token_ids}
    for at in draw.sample(range(len(ids)), max(1, round(WRONG * len(ids)))):
        ids[at] = next(
            token
            for token in iter(lambda: draw.randrange(vocabulary.size), None)
            if token not in {*kept, ids[at]}
        )
    return ids


def _figures(record: ExperimentRecord) -> Figures[tuple[str, str]]:
    return Figures(
        {
            (name, start): Outcomes(**record.data(decoder=name)[start])
            for name in SETTINGS
            for start in STARTS
        },
        record.resamples,
    )


EXPERIMENT = Drafts()
