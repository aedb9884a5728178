"""Fill in what is missing of an answer: before a suffix, and between given parts.

python examples/fill_in_the_middle.py
"""

from __future__ import annotations

from lopa_ray import GivenPart, LocalEngine

PROBLEM = "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?"


def main() -> None:
    """Decode the same problem twice."""
    engine = LocalEngine.from_pretrained("demo")  # or a checkpoint's folder, with dtype=... and device=...
    suffix = " So he gets 42-15=27 cards.\n#### 27"
    before = engine.generate(PROBLEM, suffix=suffix, max_new_tokens=12)
    print(f"Before the suffix, {before.tokens} tokens in {before.steps} steps ({before.finish_reason}):")
    print(f"  {before.text!r} + {suffix!r}")

    parts = (GivenPart(text="Now Tom has "), GivenPart(hole=6, text=" cards. Then he has "))
    whole = engine.generate(PROBLEM, given_parts=parts, max_new_tokens=64)
    print(f"Around the given parts, {whole.tokens} tokens in {whole.steps} steps:")
    print(f"  {whole.text!r}")


if __name__ == "__main__":
    main()
