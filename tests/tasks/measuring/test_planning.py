"""How long the trainings will take, told from the speeds that were measured."""

from datetime import datetime, timedelta
from pathlib import Path

from tasks.measuring.planning import format_training_time
from tasks.params import load_params
from tasks.records.measurement import CellSpeed, MeasurementFile


def test_training_time_is_that_of_all_rows_epochs_and_seeds_of_each_cell(project: Path) -> None:
    params = load_params(project / "presets" / "embedded.yaml", looks_at_data=False)
    rates = {"1proc": 10.0, "2proc": 20.0}
    speeds = {cell: CellSpeed.model_construct(samples_per_second=rate) for cell, rate in rates.items()}
    rows = {str(part): 3600 for part in params.ranges}
    hours = len(params.ranges) * params.train.epochs / 10
    assert (len(params.ranges), params.train.epochs) == (2, 2)
    told = format_training_time(params, MeasurementFile.model_construct(speeds=speeds), rows)
    end = datetime.now() + timedelta(hours=1.5 * hours)
    assert told == (
        "as timed, a whole training takes, beside the starts of its ranks (h:min:s): "
        f"1proc 0:{60 * hours:.0f}:00 and 2proc 0:{30 * hours:.0f}:00; all of them end about {end:%a %H:%M} "
        "if none is finished"
    )
