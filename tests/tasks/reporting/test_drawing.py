import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from tasks.reporting import drawing
from tests.tasks.reporting.hostile import NAMES, hostile
from tests.tasks.reporting.measured import measure_again, measurement
from tests.tasks.reporting.rendered import draw

NAMES_OF_CHARTS = ["speedup", "parallel_efficiency", "time_per_epoch", "loss_curves"]
SHOWN = {
    "speedup": ["2proc  1.62x", "times as fast as 1proc"],
    "parallel_efficiency": ["81 %", "100 %", "percent of linear speedup"],
    "time_per_epoch": ["training seconds", "range (rows of the data set)"],
    "loss_curves": ["optimizer step", "loss (nats per token)", "1proc", "2proc"],
    "waterfall": ["ideal", "34.0", "3.50", "0.200", "measured", "42.0", "ms per optimizer step", "part of the step"],
    "frontier": ["1proc", "2proc", "most memory allocated by a rank (GiB)", "µs per token"],
}
"""Chart -> figures of it, and what stands on its axes with the unit."""


def texts(svg):
    return ["".join(part.itertext()) for part in ElementTree.fromstring(svg).iter() if part.tag.endswith("}text")]


def test_a_chart_that_has_nothing_to_show_is_left_out(clean_results, measured_results):
    assert list(drawing.select_charts(clean_results)) == NAMES_OF_CHARTS
    # Of one comparison there is no history yet.
    assert list(drawing.select_charts(measured_results)) == list(SHOWN)
    bare = measure_again(measured_results, measurement(waterfalls=[], memory=[]))
    assert list(drawing.select_charts(bare)) == NAMES_OF_CHARTS


@pytest.mark.parametrize("name", SHOWN)
def test_a_chart_shows_its_figures_and_a_unit_on_every_axis_in_the_same_bytes_each_time(measured_results, name):
    svg = draw(name, measured_results)
    assert set(SHOWN[name]) <= set(texts(svg))
    assert svg == draw(name, measured_results)
    assert not re.search(r"\b20\d\d-\d\d-\d\d", svg)
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {
        *drawing.SERIES,
        drawing.INK,
        drawing.MUTED,
        "#ccd2d9",
        "#15191f",
    }
    attacked = draw(name, hostile(measured_results))
    ElementTree.fromstring(attacked)
    assert all(attack not in attacked for attack in NAMES.values() if "<" in attack)


def test_the_points_and_bars_are_drawn_where_the_figures_are(measured_results):
    axes = Figure().subplots()
    drawing.find_charts()["waterfall"].draw(measured_results, axes)
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    # 42 ms - 34 ms - 7.8 ms of parts: 0.2 ms are not explained.
    for place, bar in ((1, (34, 0.2)), (2, (34.2, 3.5)), (-2, (41.8, 0.2)), (-1, (0, 42))):
        assert bars[place] == pytest.approx(bar)
    axes = Figure().subplots()
    drawing.find_charts()["speedup"].draw(measured_results, axes)
    assert [bar.get_width() for bar in axes.patches] == [pytest.approx(68 / 42)]
    interval, linear, *_ = [list(line.get_xdata()) for line in axes.lines]
    assert (interval, linear) == (pytest.approx([1.58, 1.66], abs=0.005), [2.0, 2.0])


@pytest.mark.parametrize("name", ["frontier", "parallel_efficiency", "speedup"])
def test_a_withheld_chart_says_which_gate_failed_and_shows_no_figure(withheld_measured_results, name):
    shown = texts(draw(name, withheld_measured_results))
    assert any(text.startswith("Withheld: ") for text in shown)
    assert "“Same parameters on all ranks”" in " ".join(shown)
    assert not any(re.search(r"\d", text) for text in shown)
