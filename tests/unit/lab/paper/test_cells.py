"""Which configuration makes which cell of the paper's tables and figures."""

from __future__ import annotations

import pytest

from lopa_lab.paper.cells import METRICS, TABLES, Cell, cells, published
from lopa_ray.config.yaml_files import presets
from lopa_ray.errors import SettingsError

NUMBER = {"table1": 20, "table2": 6, "table3": 8, "table4": 72, "table7": 12, "fig4": 6 * 14, "fig5": 3 * 4}


def find(table: str, row: str, task: str) -> Cell:
    (cell,) = (cell for cell in cells(table) if (cell.row, cell.task) == (row, task))
    return cell


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


def test_rows_of_tables_1_and_2() -> None:
    lopa, d2f = (find("table1", f"D2F-Dream {row}", "math") for row in ("lopa", "d2f"))
    assert lopa.config == d2f.config == "paper/d2f-dream-math"
    assert (lopa.published["tpf"], d2f.published["tpf"]) == (8.0, 2.6)
    decoding, plain = lopa.load().decode, d2f.load().decode
    assert (decoding.decoder, plain.decoder) == ("lopa", "d2f")
    # The baseline has all that it understands of the preset.
    shared = plain.model_dump().keys() & decoding.model_dump().keys() - {"decoder"}
    assert all(getattr(plain, name) == getattr(decoding, name) for name in shared)
    coder = find("table2", "D2F-DiffuCoder d2f", "mbpp_plus").load().decode.model_dump()
    assert coder["window_attention"] == "block_causal"
    assert find("table1", "Dream lopa", "mbpp").load().decode.model_dump()["num_branches"] == 7


def test_rows_of_systems() -> None:
    base = find("table4", "D2F-Dream-Base S14", "gsm8k").load()
    instruct = find("table4", "D2F-Dream-Instruct S14", "gsm8k").load()
    assert (base.model.path, base.model.lora) == (
        "Dream-org/Dream-v0-Base-7B",
        "SJTU-Deng-Lab/D2F_Dream_Base_7B_Lora",
    )
    assert (instruct.model.path, instruct.model.lora) == (
        "Dream-org/Dream-v0-Instruct-7B",
        "SJTU-Deng-Lab/D2F_Dream_Instruct_7B_Lora",
    )
    assert (base.decode, base.group) == (instruct.decode, instruct.group)
    assert find("table3", "D2F-Dream-Base LoPA-Dist-NV", "mbpp").config == "paper/s12"
    single = find("table7", "D2F-Dream-7B-Instruct (CUDA)", "gsm8k").load()
    assert (single.decode.decoder, single.group.num_workers) == ("d2f", 1)
    assert single.model.path == "Dream-org/Dream-v0-Instruct-7B"
    assert find("table7", "SDAR-8B-Chat (LMDeploy)", "mbpp").load().model.path == "JetLM/SDAR-8B-Chat"


def test_branches_of_figures() -> None:
    rows = [cell.row for cell in cells("fig4") if cell.task == "humaneval_plus"]
    assert rows == ["D2F-DiffuCoder D2F", *(f"D2F-DiffuCoder {number} branches" for number in range(2, 15))]
    point = find("fig4", "D2F-Dream 3 branches", "mbpp")
    assert not point.published
    assert point.load().decode.model_dump()["num_branches"] == 3
    assert [cell.row.removeprefix("D2F-Dream ") for cell in cells("fig5") if cell.task == "gsm8k"] == [
        "D2F",
        "2 branches",
        "4 branches",
        "8 branches",
    ]


def test_other_tables_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"table: got 'table5'; allowed: table1, .*fig5"):
        cells("table5")
