"""Which configuration makes which cell of the paper's tables and figures."""

from __future__ import annotations

import pytest

from lopa_lab.paper.cells import METRICS, TABLES, cells, published
from lopa_ray.config.yaml_files import presets
from lopa_ray.errors import SettingsError

NUMBER = {"table1": 20, "table2": 6, "table3": 8, "table4": 72, "table7": 12, "fig4": 6 * 14, "fig5": 3 * 4}


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


def test_other_tables_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"table: got 'table5'; allowed: table1, .*fig5"):
        cells("table5")
