import dataclasses
from pathlib import Path

import pytest

from tasks.records.measurement import MeasurementFile
from tasks.reporting.evidence import collect_residuals
from tasks.reporting.results import Results
from tests.tasks.reporting.borne_out import bear_out
from tests.tasks.reporting.comparison import write_comparison
from tests.tasks.reporting.measured import measurement
from tests.tasks.reporting.rendered import undrawn_page_of


@pytest.fixture
def found(tmp_path: Path) -> MeasurementFile:
    """What was measured, with blocks of both phases that bear it out."""
    write_comparison(tmp_path)
    measured = bear_out(tmp_path, measurement())
    beside = [arm.model_copy(update={"phase": "waterfall"}) for arm in measured.blocks]
    return measured.model_copy(update={"blocks": [*measured.blocks, *beside]})


def test_parts_that_explain_what_the_speedup_lost_add_up_and_others_do_not(found: MeasurementFile) -> None:
    (right,) = collect_residuals(found, found.waterfalls)
    # 1 - 68 / 42 / 2 is lost; 7.8 of 42 ms are explained; 2.5 % of 81 % is the speedup's doubt.
    assert right.lost_efficiency == pytest.approx(1 - 68 / 84)
    assert right.explained_efficiency == pytest.approx(7.8 / 42)
    assert right.residual.value == pytest.approx(0.2 / 42)
    assert right.residual.high - right.residual.value == pytest.approx(0.025 * 68 / 84)
    assert right.adds_up
    half = [part.model_copy(update={"seconds": dataclasses.replace(part.seconds, value=part.seconds.value / 2)})
            for part in found.waterfalls[0].parts]  # fmt: skip
    (wrong,) = collect_residuals(found, [found.waterfalls[0].model_copy(update={"parts": half})])
    assert not wrong.adds_up


def test_the_page_says_whether_the_parts_add_up(found: MeasurementFile, measured_results: Results) -> None:
    residuals = collect_residuals(found, found.waterfalls)
    text = undrawn_page_of(measured_results.model_copy(update={"residuals": residuals})).text
    assert (
        "19.0 % of the step was lost there, the parts explain 18.6 %, the rest is -1.5 % to 2.5 %: they add up." in text
    )
    apart = dataclasses.replace(residuals[0].residual, low=0.05, high=0.09)
    broken = residuals[0].model_copy(update={"residual": apart})
    text = undrawn_page_of(measured_results.model_copy(update={"residuals": [broken]})).text
    assert "the rest is 5.0 % to 9.0 %: they do not add up" in text
