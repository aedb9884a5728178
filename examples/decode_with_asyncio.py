"""Decode on a group of Ray actors from an asyncio program: requests come and go by themselves, on one group.

python examples/decode_with_asyncio.py                          # on a local Ray
RAY_ADDRESS=10.0.0.1:6379 python examples/decode_with_asyncio.py   # on a cluster

Where the cluster asks for a token RAY_AUTH_MODE=token is set as well: this program imports Ray itself.
"""

from __future__ import annotations

import asyncio
import logging

import ray

from actors import AsyncRayEngine
from lopa_ray import Config

PROBLEMS = [
    "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?",
    "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?",
    "How many stamps does Zoe have left from 9 jars of 6 stamps if she gives 23 to Kate?",
]


async def decode(config: Config) -> None:
    """Decode some problems, each in a task of its own, and print each answer as soon as it is there."""
    async with await AsyncRayEngine.start(config) as engine:
        for finished in asyncio.as_completed([engine.generate(problem) for problem in PROBLEMS]):
            result = await finished
            print(f"{result.text}\n{result.tokens} tokens, TPF {result.tpf:.2f}\n")


def main() -> None:
    """Connect to Ray and decode on two workers."""
    ray.init(logging_level=logging.ERROR)
    asyncio.run(decode(Config.load("demo", {"group": {"num_workers": 2}})))


if __name__ == "__main__":
    main()
