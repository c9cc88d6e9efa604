import dataclasses
from pathlib import Path

import pytest

from tasks.records.measurement import MeasurementFile
from tasks.reporting.evidence import collect_residuals
from tests.tasks.reporting.borne_out import bear_out
from tests.tasks.reporting.comparison import write_comparison
from tests.tasks.reporting.measured import measurement


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
