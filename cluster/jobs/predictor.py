"""LopaPredictor: decoding as a step of a Ray Data pipeline, on a pool of actors.

dataset.map_batches(
    LopaPredictor, fn_constructor_kwargs={"config": "d2f-dream-7b"}, batch_size=64, concurrency=4, num_gpus=1
)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import OPTION_KEYS, PROMPT_KEYS, parse_record
from cluster.batch.source import without_nulls
from cluster.jobs.data_batches import as_table, check_new_columns, plain, start_engine, with_columns
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError

RESULT_TYPES = {
    "text": "string",
    "token_ids": "list",
    "finish_reason": "string",
    "tokens": "int64",
    "prompt_tokens": "int64",
    "steps": "int64",
    "forwards": "int64",
    "rule_steps": "int64",
    "tpf": "double",
    "tps": "double",
    "seconds": "double",
    "decoder": "string",
    "num_branches": "string",  # a number or auto
    "trajectory": "string",  # as JSON, with the setting `trajectory`
    "error": "string",
}
"""Columns that a result adds, with pyarrow's names of their types; `list` is one of int64."""


class LopaPredictor:
    """The class for `Dataset.map_batches`: it takes rows with prompts and returns the same rows with results."""

    def __init__(
        self,
        config: str | Path = "demo",
        overrides: dict[str, dict[str, Any]] | None = None,
        *,
        raw: bool = False,
        output_prefix: str = "",
    ) -> None:
        """Load the model.

        `config` is a preset, or a YAML file that every node can read, with `overrides` (section → values) on top.
        Each actor resolves a name on the Hugging Face Hub by itself: with a commit in it (`org/name@commit`) all load
        the same weights, also if the repository changes meanwhile.
        With one worker the model is in this process, on the device that `num_gpus` of `map_batches` gives to it.
        With more, or with shards, this process starts a group of actors. `raw` leaves the chat template out, and
        `output_prefix` is put before the names of the columns that results add.

        Raises SettingsError, CheckpointError, and what `RayEngine.from_config` raises.
        """
        self._raw, self._prefix = raw, output_prefix
        self._engine = start_engine(Config.load(config, overrides))

    def __call__(self, batch: Any) -> Any:
        """Decode the rows of a batch in flight together; returns a pyarrow.Table.

        `batch` is a mapping of columns or a pyarrow.Table. A row needs exactly one of `prompt` (text or token ids),
        `messages` and `token_ids`, and may have `settings`, which go on top of the configuration's, and `parse_special`
        (see `SessionFactory.render`); null means no value. The columns of `RESULT_TYPES` are added. A row that cannot
        be decoded has no result, and the reason in `error`, which is null in other rows. Raises SettingsError for a
        batch without prompts, and if a column already has a result's name.
        """
        table = as_table(batch)
        names = table.column_names
        if not set(PROMPT_KEYS) & set(names):
            raise SettingsError(
                f"got the columns {', '.join(names)}; needed: one of {', '.join(PROMPT_KEYS)}; rename the one with the "
                "prompts"
            )
        check_new_columns(names, self._prefix, RESULT_TYPES, "results")
        columns = [name for name in (*PROMPT_KEYS, *OPTION_KEYS) if name in names]
        records = [without_nulls(plain(record)) for record in table.select(columns).to_pylist()]
        lines = [parse_record(number, record) for number, record in enumerate(records, 1)]
        rows: list[dict[str, Any]] = []
        for output in decode_lines(self._engine, lines, raw=self._raw):
            if output.error:
                rows.append({"error": output.error})
            else:
                trajectory = output.row.get("trajectory")
                changed = {
                    "num_branches": str(output.row["num_branches"]),
                    "trajectory": trajectory and json.dumps(trajectory),
                }
                rows.append({**output.row, **changed})
        return with_columns(table, self._prefix, RESULT_TYPES, rows)
