import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tasks.reporting import charts, drawing
from tasks.reporting.results import LossCurve, Results
from tests.tasks.reporting.hostile import NAMES, hostile

NAMES_OF_CHARTS = ["time_per_epoch", "average_epoch_time", "speedup", "parallel_efficiency", "loss_curves"]


def texts(svg: str) -> list[str]:
    return ["".join(part.itertext()) for part in ElementTree.fromstring(svg).iter() if part.tag.endswith("}text")]


def test_the_charts_are_found_by_their_files_in_the_order_of_the_report() -> None:
    assert list(drawing.find_charts()) == NAMES_OF_CHARTS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("time_per_epoch", ["0-8", "8-16", "6.00", "2.40", "training seconds", "range (rows of the data set)"]),
        ("average_epoch_time", ["1proc", "10.0 s", "6.40 s", "training seconds per epoch, all ranges", "cell (name)"]),
        ("speedup", ["2proc  1.56x", "1proc  1.00x", "linear", "number of ranks", "times as fast as 1proc"]),
        ("parallel_efficiency", ["100 %", "78 %", "percent of linear speedup", "cell (name)"]),
        ("loss_curves", ["1proc", "2proc", "optimizer step", "loss (nats per token)"]),
    ],
)
def test_a_chart_shows_its_figures_and_a_unit_on_every_axis(
    clean_results: Results, name: str, expected: list[str]
) -> None:
    chart = drawing.find_charts()[name]
    found = texts(drawing.draw_svg(name, chart, clean_results))
    assert set(expected) <= set(found), found
    assert chart.TITLE in found


@pytest.mark.parametrize("name", NAMES_OF_CHARTS)
def test_the_same_results_give_the_same_bytes(clean_results: Results, name: str) -> None:
    chart = drawing.find_charts()[name]
    svg = drawing.draw_svg(name, chart, clean_results)
    assert svg == drawing.draw_svg(name, chart, clean_results)
    assert svg.isascii() or svg.encode()
    assert not re.search(r"\b20\d\d-\d\d-\d\d", svg)


@pytest.mark.parametrize("name", ["speedup", "parallel_efficiency"])
def test_a_withheld_chart_says_which_gate_failed_and_shows_no_figure(withheld_results: Results, name: str) -> None:
    svg = drawing.draw_svg(name, drawing.find_charts()[name], withheld_results)
    assert "Withheld" in texts(svg)
    assert "“Same parameters on all ranks”" in " ".join(texts(svg))
    assert not any(re.search(r"\d", text) for text in texts(svg))


def test_every_colour_of_a_chart_is_a_variable_that_the_page_sets(clean_results: Results) -> None:
    for name, chart in drawing.find_charts().items():
        svg = drawing.draw_svg(name, chart, clean_results)
        drawn = re.sub(r"<style.*?</style>", "", svg)
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", drawn)
        assert not re.search(r"#[0-9a-fA-F]{6}\b", bare), name
        assert set(re.findall(r"var\(--([a-z0-9-]+)", drawn)) <= set(drawing.colors())


def _contrast(one: str, other: str) -> float:
    def luminance(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_series_stand_out_from_light_and_dark_ground() -> None:
    for variable, (light, dark) in drawing.colors().items():
        if variable == "chart-grid":
            continue
        # WCAG 2.2: 4.5 for text, 3 for graphics.
        least = 3.0 if "series" in variable else 4.5
        assert _contrast(light, "#ffffff") >= least, variable
        assert _contrast(dark, "#15191f") >= least, variable


def test_hostile_names_stay_text(clean_results: Results) -> None:
    for name, chart in drawing.find_charts().items():
        svg = drawing.draw_svg(name, chart, hostile(clean_results))
        assert not [part for part in ElementTree.fromstring(svg).iter() if part.tag.endswith("script")]
        assert "<script" not in svg
        assert all(attack not in svg for attack in NAMES.values() if "<" in attack)


def test_many_cells_and_many_segments_can_be_drawn(clean_results: Results) -> None:
    one, two = clean_results.cells
    cells = [
        one,
        *(two.model_copy(update={"cell": f"cell-with-a-long-name-{n}", "world_size": n}) for n in range(2, 18)),
    ]
    cells = [cell.model_copy(update={"segments": cell.segments * 8, "num_epochs": 8}) for cell in cells]
    curves = [LossCurve(cell=cell.cell, steps_per_point=1, steps=[1, 2], losses=[2.0, 1.0]) for cell in cells]
    results = clean_results.model_copy(update={"cells": cells, "loss_curves": curves})
    for name, chart in drawing.find_charts().items():
        assert chart.TITLE in texts(drawing.draw_svg(name, chart, results))


def test_a_new_chart_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_results: Results) -> None:
    (tmp_path / "data_wait.py").write_text(
        'TITLE = "Data wait"\nPOSITION = 35\nNEEDS_SPEEDUP = False\n\n'
        'def alt_text(results):\n    return "words"\n\n'
        "def draw(results, axes):\n    axes.plot([0, 1])\n"
    )
    monkeypatch.setattr(charts, "__path__", [*charts.__path__, str(tmp_path)])
    monkeypatch.setattr(drawing, "_CHARTS", tmp_path)
    found = drawing.find_charts()
    assert list(found) == ["data_wait"]
    assert "Data wait" in texts(drawing.draw_svg("data_wait", found["data_wait"], clean_results))
