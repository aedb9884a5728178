"""Decode a dataset with Ray Data: read, decode on a pool of actors, write, all of it streaming.

    pip install -e '.[jobs]'
    python examples/batch_with_ray_data.py

A row that cannot be decoded keeps its place, with the reason in `error`.
"""

from __future__ import annotations

import ray

from cluster.jobs import LopaPredictor

ROWS = [
    {"prompt": "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?"},
    {"prompt": "How many stamps does Zoe have left from 9 jars of 6 stamps if she gives 23 to Kate?"},
    {"prompt": "Ben has 7 pens. " * 1000},  # longer than the model reads
]


def main() -> None:
    """Decode some problems on two actors, each with a model of its own."""
    # On a cluster: ray.data.read_parquet("s3://..."), and num_gpus=1 for a model on GPUs.
    answers = ray.data.from_items(ROWS).map_batches(
        LopaPredictor,
        fn_constructor_kwargs={"config": "demo", "overrides": {"group": {"num_workers": 1}}},
        batch_size=16,
        concurrency=2,
    )
    for row in answers.take_all():
        answer = row["text"] if row["error"] is None else f"not decoded: {row['error']}"
        print(f"{row['prompt'][:100]}\n{answer}\n")


if __name__ == "__main__":
    main()
