"""Which configuration makes which cell of the paper's tables and figures."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from lopa_lab.paper.cells import METRICS, TABLES, cells, published
from lopa_ray.config.yaml_files import presets
from lopa_ray.errors import SettingsError

NUMBER = {"table1": 20, "table2": 6, "table3": 8, "table4": 72, "table7": 12, "fig4": 6 * 14, "fig5": 3 * 4}


@pytest.mark.medium
@pytest.mark.parametrize("table", TABLES)
def test_cells_are_complete_and_load(table: str) -> None:
    made = cells(table)
    assert len(made) == NUMBER[table] == len({(cell.row, cell.task) for cell in made})
    for cell in made:
        assert cell.table == table
        assert cell.published.keys() <= METRICS.keys()
        if cell.config is None:
            assert cell.note
            with pytest.raises(SettingsError, match=f"{table}.*is not run by this project"):
                cell.load()
        else:
            assert cell.load().model.path != "demo"


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "table4", "table7"])
def test_cells_have_all_that_is_published(table: str) -> None:
    results = [values for row in published()["results"][table] for values in row["results"].values()]
    assert [dict(cell.published) for cell in cells(table)] == results


def test_every_preset_of_the_paper_makes_a_cell() -> None:
    """But for those of LLaDA, which the paper does not have."""
    used = {cell.config for table in TABLES for cell in cells(table)}
    assert {name for name in presets() if name.startswith("paper/")} - used == {
        "paper/llada-vanilla",
        "paper/llada-fast-dllm",
        "paper/llada-d2f",
        "paper/llada-lopa",
    }


@pytest.mark.parametrize(
    ("table", "row", "task", "changed"),
    [
        ("table1", "D2F-Dream d2f", "math", {"decode.decoder": "d2f", "decode.window_attention": "full"}),
        ("table2", "D2F-DiffuCoder d2f", "mbpp_plus", {"decode.window_attention": "block_causal"}),
        ("table4", "D2F-Dream-Instruct S14", "gsm8k", {"model.path": "Dream-org/Dream-v0-Instruct-7B"}),
        ("table7", "D2F-Dream-7B-Base (CUDA)", "gsm8k", {"decode.decoder": "d2f", "group.num_workers": 1}),
        ("table7", "SDAR-8B-Chat (LMDeploy)", "mbpp", {"model.path": "JetLM/SDAR-8B-Chat"}),
        ("fig4", "D2F-Dream 3 branches", "mbpp", {"decode.num_branches": 3}),
        ("fig4", "D2F-DiffuCoder D2F", "mbpp_plus", {"decode.window_attention": "block_causal"}),
    ],
)
def test_rows_change_their_preset(table: str, row: str, task: str, changed: dict[str, Any]) -> None:
    (cell,) = (cell for cell in cells(table) if (cell.row, cell.task) == (row, task))
    config = cell.load()
    assert {name: attrgetter(name)(config) for name in changed} == changed


def test_other_tables_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"table: got 'table5'; allowed: table1, .*fig5"):
        cells("table5")
