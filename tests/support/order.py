"""Order: what the clients under test have a model fill in, as arguments of a function or as an answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Order(BaseModel):
    """Order items from the shop."""

    model_config = ConfigDict(extra="forbid")

    customer: str = Field(max_length=4)
    item: Literal["pens", "books", "stamps"]
    count: int = Field(ge=1, le=99)
    gift: bool

    @property
    def confirmation(self) -> str:
        """What the shop says to it."""
        return f"{self.count} {self.item} for {self.customer}"


PARAMETERS: dict[str, Any] = Order.model_json_schema()
"""The parameters of a function that takes an order."""
