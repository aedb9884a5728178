"""RowSettings: the settings of a recorded row; each is read once, and a setting that is left over is unknown."""

from __future__ import annotations

from typing import Any

from lopa_lab.conformance.cases import MalformedCaseError, UnsupportedCaseError, abbreviate, token_ids


class RowSettings:
    """The settings of a row. Each is popped once and its type checked; what is left over is unknown."""

    def __init__(self, row: dict[str, Any]) -> None:
        """Raises MalformedCaseError for a row without an object of settings."""
        self.row = row
        values = row.get("settings")
        if not isinstance(values, dict):
            raise MalformedCaseError(f"settings: got {abbreviate(values)}; allowed: an object")
        self._values = dict(values)

    def pop(self, key: str, *types: type, default: Any = ...) -> Any:
        """One setting, of one of these types. Raises MalformedCaseError."""
        value = self._values.pop(key, None)
        if value is None and default is not ...:
            return default
        if type(value) not in types:
            allowed = " or ".join(kind.__name__ for kind in types)
            raise MalformedCaseError(f"settings.{key}: got {abbreviate(value)}; allowed: {allowed}")
        return value

    def check_all_popped(self) -> None:
        """Raises UnsupportedCaseError for settings that are left over."""
        if self._values:
            raise UnsupportedCaseError(f"unknown settings {', '.join(sorted(self._values))}")

    def pop_threshold(self, key: str, **default: Any) -> Any:
        """A threshold that probabilities are strictly above or not, so that any over 1 is as good as 1."""
        value = self.pop(key, int, float, **default)
        return None if value is None else min(1.0, max(0.0, value))

    def pop_whole_blocks(self) -> tuple[int, int]:
        """Size of a block, and length of the answer: whole blocks in SDAR and LLaDA2, counted from position 0.

        Raises MalformedCaseError.
        """
        prompt, length = len(token_ids(self.row, "prompt")), self.pop("gen_length", int)
        block = self.pop("block_length", int)
        if block < 1:
            raise MalformedCaseError(f"settings.block_length: got {block}; allowed: 1 and more")
        return block, -(-(prompt + length) // block) * block - prompt

    def pop_filters(self) -> dict[str, Any]:
        """`top_k` and `top_p` of SDAR's and LLaDA2's samplers. A `top_p` of 0 leaves the most likely token alone."""
        top_k, top_p = self.pop("top_k", int, default=0), self.pop("top_p", int, float, default=1.0)
        if top_p <= 0:
            return {"top_k": 1, "top_p": None}
        return {"top_k": top_k if top_k > 0 else None, "top_p": top_p if top_p < 1 else None}

    def require_greedy(self) -> None:
        """Raises UnsupportedCaseError if tokens were drawn."""
        if self.pop("temperature", int, float, default=0):
            raise UnsupportedCaseError(
                "drawn tokens (temperature above 0) cannot be compared: the draws differ"
            )
