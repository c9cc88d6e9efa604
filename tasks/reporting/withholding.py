"""What is left of a measurement once checks.py has found that gates failed: nothing that compares those cells."""

from collections.abc import Collection

from tasks.process.wording import join_names
from tasks.records.arm_figures import DATA_WAIT, select_cell_arms
from tasks.records.measurement import Measurement

_AGAINST_THE_BASELINE = (DATA_WAIT, "host-to-device copy", "optimizer", "fixed")
"""Parts of which only what does not shrink with the ranks is a loss, so that the baseline is in them."""


def withhold_cells(measurement: Measurement, cells: Collection[str]) -> Measurement:
    """Return what failed gates of these cells leave of the measurement: nothing that compares one of them or rests on
    it.

    A change rests on the cell that it was tried on.
    """
    left, left_out = withhold_comparison(measurement, cells), list(measurement.left_out)
    advice = measurement.advice
    tried = [item.cell for item in advice.tried] if advice is not None else []
    if advice is not None and set(tried) & set(cells):
        kept = [item for item in advice.tried if item.cell not in cells]
        combined = None if advice.combined is None or advice.combined.cell in cells else advice.combined
        advice = advice.model_copy(update={"tried": kept, "combined": combined}) if kept else None
        left_out.append(
            "Advice is withheld where changes were tried on "
            f"{_describe_withheld(measurement, set(cells) & set(tried))}."
        )
    return left.model_copy(update={"advice": advice, "left_out": left_out})


def _describe_withheld(measurement: Measurement, cells: Collection[str]) -> str:
    named = join_names([arm.cell for arm in select_cell_arms(measurement) if arm.cell in cells])
    return f"{named}, whose speedup is withheld"


def withhold_comparison(measurement: Measurement, cells: Collection[str]) -> Measurement:
    """Return the measurement without whatever compares one of these cells with the baseline.

    Seconds of each arm and of the parts that are of one cell alone, the noise, the machine and what a change does to
    one and the same cell stay.
    """
    withheld = ("ideal_seconds", "unexplained_seconds", "lost_efficiency", "unexplained_efficiency", "verdict")
    return measurement.model_copy(
        update={
            "arms": [
                arm.model_copy(update={"speedup": None}) if arm.cell in cells else arm for arm in measurement.arms
            ],
            "beside": [] if measurement.arms[0].cell in cells else measurement.beside,
            "waterfalls": [
                waterfall.model_copy(
                    update={
                        **dict.fromkeys(withheld),
                        "parts": [part for part in waterfall.parts if part.name not in _AGAINST_THE_BASELINE],
                    }
                )
                if waterfall.cell in cells
                else waterfall
                for waterfall in measurement.waterfalls
            ],
        }
    )
