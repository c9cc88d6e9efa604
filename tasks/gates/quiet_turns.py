"""Was the machine quiet for long enough to say how much faster a cell is?"""

from tasks.gates.measured import select_arm
from tasks.process import wording
from tasks.records.gate import Finding, make_finding
from tasks.records.outputs import Outputs


def check_quiet_turns(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the speedup of a cell has an interval: enough turns in which others left the CPUs alone."""
    measurement = outputs.measurement
    if measurement is None or cell == outputs.params.baseline:
        return None
    most = wording.format_small_percent(measurement.most_others_share)
    seen = (
        "this machine does not tell what others use"
        if measurement.others_share is None
        else f"others used {wording.format_small_percent(measurement.others_share)} of the CPUs in the mean"
    )
    told = (
        f"{cell}: {measurement.num_quiet_turns} of {wording.format_plural(measurement.num_turns, 'turn')} in "
        f"{measurement.num_launches} starts were quiet (at most {most} by others); {seen}"
    )
    return make_finding(
        [
            f"{told}: too few for an interval; stop what else runs, or give measure.max_seconds more, or count all "
            "turns with measure.others_share: 1"
        ]
        * (select_arm(measurement, cell).speedup is None),
        otherwise=told,
        numbers={"quiet_turns": measurement.num_quiet_turns, "turns": measurement.num_turns},
    )
