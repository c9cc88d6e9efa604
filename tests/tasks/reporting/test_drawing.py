import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tasks.reporting import charts, drawing
from tasks.reporting.results import LossCurve, Results
from tests.tasks.reporting.hostile import NAMES, hostile
from tests.tasks.reporting.measured import arm, measurement, waterfall
from tests.tasks.reporting.rendered import draw_once

NAMES_OF_CHARTS = ["speedup", "parallel_efficiency", "time_per_epoch", "loss_curves"]
MEASURED_CHARTS = ["waterfall", "frontier"]


def texts(svg: str) -> list[str]:
    return ["".join(part.itertext()) for part in ElementTree.fromstring(svg).iter() if part.tag.endswith("}text")]


def test_the_charts_are_found_by_their_files_in_the_order_of_the_report() -> None:
    found = [*NAMES_OF_CHARTS, "heldout_curves", "waterfall", "timeline", "frontier", "history"]
    assert list(drawing.find_charts()) == found


def test_a_chart_that_has_nothing_to_show_is_left_out(clean_results: Results, measured_results: Results) -> None:
    assert list(drawing.select_charts(clean_results)) == NAMES_OF_CHARTS
    # Of one comparison there is no history yet.
    assert list(drawing.select_charts(measured_results)) == [*NAMES_OF_CHARTS, *MEASURED_CHARTS]
    nothing = measurement(waterfalls=[], memory=[])
    bare = measured_results.model_copy(update={"measurement": nothing})
    assert list(drawing.select_charts(bare)) == NAMES_OF_CHARTS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("time_per_epoch", ["0-8", "8-16", "6.00", "2.40", "training seconds", "range (rows of the data set)"]),
        ("speedup", ["2proc  1.56x", "1proc  1.00x", "cell (name)", "times as fast as 1proc"]),
        ("parallel_efficiency", ["100 %", "78 %", "percent of linear speedup", "cell (name)"]),
        ("loss_curves", ["1proc", "2proc", "optimizer step", "loss (nats per token)"]),
    ],
)
def test_a_chart_shows_its_figures_and_a_unit_on_every_axis(
    clean_results: Results, name: str, expected: list[str]
) -> None:
    chart = drawing.find_charts()[name]
    found = texts(draw_once(name, clean_results))
    assert set(expected) <= set(found), found
    assert chart.TITLE in found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("speedup", ["2proc  1.62x", "in a DDP wrapper  0.98x", "cell (name)", "times as fast as 1proc"]),
        ("parallel_efficiency", ["81 %", "100 %", "percent of linear speedup"]),
        # 42 ms - 34 ms - 7.8 ms of parts: 0.2 ms are not explained.
        ("waterfall", ["ideal", "34.0", "exposed communication", "3.50", "unexplained", "0.200", "measured", "42.0"]),
        ("waterfall", ["ms per optimizer step", "part of the step"]),
        ("frontier", ["1proc", "2proc", "most memory allocated by a rank (GiB)", "µs per token"]),
    ],
)
def test_a_chart_of_what_was_measured_shows_its_figures_and_a_unit_on_every_axis(
    measured_results: Results, name: str, expected: list[str]
) -> None:
    found = texts(draw_once(name, measured_results))
    assert set(expected) <= set(found), found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("speedup", ["2proc 1.62x (1.58 to 1.66) on 2 ranks", "in a DDP wrapper 0.98x (0.96 to 1.01) on 1"]),
        ("waterfall", ["ideal step of 34.0 ms to the measured 42.0 ms", "contention 2.00 ms", "unexplained 0.200 ms"]),
    ],
)
def test_a_chart_of_what_was_measured_says_its_figures_in_words(
    measured_results: Results, name: str, expected: list[str]
) -> None:
    told = drawing.tell_figures(drawing.find_charts()[name], measured_results)
    assert all(words in told for words in expected), told


def test_the_points_and_bars_are_drawn_where_the_figures_are(measured_results: Results) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    drawing.find_charts()["waterfall"].draw(measured_results, axes)
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars[0] == (0, pytest.approx(34))
    assert bars[1] == (pytest.approx(34), pytest.approx(0.2))
    assert bars[2] == (pytest.approx(34.2), pytest.approx(3.5))
    assert bars[-2] == (pytest.approx(41.8), pytest.approx(0.2))
    assert bars[-1] == (0, pytest.approx(42))
    axes = Figure().subplots()
    drawing.find_charts()["speedup"].draw(measured_results, axes)
    assert [bar.get_width() for bar in axes.patches] == [pytest.approx(68 / 42), pytest.approx(0.98, abs=0.01)]
    interval, linear, *_ = [list(line.get_xdata()) for line in axes.lines]
    assert (interval, linear) == ([pytest.approx(1.58, abs=0.005), pytest.approx(1.66, abs=0.005)], [2.0, 2.0])


def test_a_withheld_waterfall_keeps_the_parts_of_the_cell_alone_and_has_neither_ideal_nor_unexplained(
    withheld_measured_results: Results,
) -> None:
    chart = drawing.find_charts()["waterfall"]
    found = texts(draw_once("waterfall", withheld_measured_results))
    assert {"exposed communication", "3.50", "measured", "42.0"} <= set(found)
    assert not {"ideal", "34.0", "unexplained"} & set(found)
    told = drawing.tell_figures(chart, withheld_measured_results)
    assert told == (
        "2proc: of a step of 42.0 ms: exposed communication 3.50 ms, straggler 0.600 ms, DDP overhead 1.00 ms, "
        "contention 2.00 ms."
    )


@pytest.mark.parametrize("name", [*NAMES_OF_CHARTS, *MEASURED_CHARTS])
def test_the_same_results_give_the_same_bytes(measured_results: Results, name: str) -> None:
    chart = drawing.find_charts()[name]
    svg = drawing.draw_svg(name, chart, measured_results)
    assert svg == draw_once(name, measured_results)
    assert svg.isascii() or svg.encode()
    assert not re.search(r"\b20\d\d-\d\d-\d\d", svg)


@pytest.mark.parametrize("name", ["frontier", "parallel_efficiency", "speedup"])
def test_a_withheld_chart_says_which_gate_failed_and_shows_no_figure(
    withheld_measured_results: Results, name: str
) -> None:
    svg = draw_once(name, withheld_measured_results)
    assert "Withheld" in texts(svg)
    assert "“Same parameters on all ranks”" in " ".join(texts(svg))
    assert not any(re.search(r"\d", text) for text in texts(svg))


def test_every_colour_of_a_chart_is_a_variable_that_the_page_sets(measured_results: Results) -> None:
    for name in drawing.select_charts(measured_results):
        svg = draw_once(name, measured_results)
        drawn = re.sub(r"<style.*?</style>", "", svg)
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", drawn)
        assert not re.search(r"#[0-9a-fA-F]{6}\b", bare), name
        assert set(re.findall(r"var\(--([a-z0-9-]+)", drawn)) <= set(drawing.list_colors())


def _contrast(one: str, other: str) -> float:
    def luminance(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_series_stand_out_from_light_and_dark_ground() -> None:
    for variable, (light, dark) in drawing.list_colors().items():
        if variable == "chart-grid":
            continue
        # WCAG 2.2: 4.5 for text, 3 for graphics.
        least = 3.0 if "series" in variable else 4.5
        assert _contrast(light, "#ffffff") >= least, variable
        assert _contrast(dark, "#15191f") >= least, variable


def test_hostile_names_stay_text(measured_results: Results) -> None:
    for name, chart in drawing.select_charts(measured_results).items():
        svg = drawing.draw_svg(name, chart, hostile(measured_results))
        assert not [part for part in ElementTree.fromstring(svg).iter() if part.tag.endswith("script")]
        assert "<script" not in svg
        assert all(attack not in svg for attack in NAMES.values() if "<" in attack)


@pytest.mark.slow
def test_many_cells_and_many_segments_can_be_drawn(clean_results: Results) -> None:
    one, two = clean_results.cells
    cells = [
        one,
        *(two.model_copy(update={"cell": f"cell-with-a-long-name-{n}", "world_size": n}) for n in range(2, 18)),
    ]
    cells = [cell.model_copy(update={"segments": cell.segments * 8, "num_epochs": 8}) for cell in cells]
    curves = [LossCurve(cell=cell.cell, steps_per_point=1, steps=[1, 2], losses=[2.0, 1.0]) for cell in cells]
    arms = [arm("1proc", 1), *(arm(cell.cell, cell.world_size, seconds=0.05) for cell in cells[1:])]
    waterfalls = [waterfall(cell.cell, cell.world_size) for cell in cells[1:]]
    found = measurement(arms=arms, waterfalls=waterfalls)
    results = clean_results.model_copy(update={"cells": cells, "loss_curves": curves, "measurement": found})
    assert "waterfall" in drawing.select_charts(results)
    for name, chart in drawing.select_charts(results).items():
        assert chart.TITLE in texts(drawing.draw_svg(name, chart, results))


def test_a_new_chart_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_results: Results) -> None:
    (tmp_path / "data_wait.py").write_text(
        'TITLE = "Data wait"\nPOSITION = 35\nNEEDS_SPEEDUP = False\nSECTION = "training"\n\n'
        'CAPTION = "how to read it"\n'
        'def describe_chart(results):\n    return "words"\n\n'
        "def draw(results, axes):\n    axes.plot([0, 1])\n"
    )
    monkeypatch.setattr(charts, "__path__", [*charts.__path__, str(tmp_path)])
    monkeypatch.setattr(drawing, "_CHARTS", tmp_path)
    found = drawing.find_charts()
    assert list(found) == ["data_wait"]
    assert "Data wait" in texts(drawing.draw_svg("data_wait", found["data_wait"], clean_results))


def test_names_of_points_that_lie_together_do_not_stand_on_each_other() -> None:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(4.7, 3.2), dpi=72, layout="constrained").subplots()
    points = [(f"cell {number}", 2.0 + 0.01 * number, 1.6 - 0.001 * number) for number in range(6)]
    axes.set_xlim(0, 3)
    axes.set_ylim(0, 2)
    drawing.name_points(axes, [*points, ("far away", 0.2, 0.3)], offset=(8, 4))
    boxes = [note.get_window_extent() for note in axes.texts]
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    *places, alone = [note.get_position()[1] for note in axes.texts]
    assert (places[0], alone) == (4, 4)
    assert places == sorted(places, reverse=True), "each below the one before"
