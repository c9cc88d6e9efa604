"""What is said of how far a speedup can be trusted: by other figures, from start to start, and why it is not surer."""

from typing import Any

import pytest

from tasks.reporting.results import Results
from tests.tasks.reporting.measured import arm, estimate, measurement
from tests.tasks.reporting.rendered import lacks, markdown_of

SPEEDUP = estimate(1.6, 0.02)
ALL_TURNS = estimate(1.45, 0.05)


def _tell(measured_results: Results, *, of_arm: dict[str, Any], **changes: Any) -> str:
    two = arm("2proc", 2, speedup=SPEEDUP, speedup_of_all_turns=ALL_TURNS, **of_arm)
    found = measurement(arms=[arm("1proc", 1), two], **changes)
    return markdown_of(measured_results.model_copy(update={"measurement": found}))


@pytest.mark.parametrize(("median", "told"), [(1.61, "1.61x by medians"), (1.7, "1.70x by medians, which disagree")])
def test_other_figures_stand_beside_a_speedup_and_disagree_in_words(
    measured_results: Results, median: float, told: str
) -> None:
    said = _tell(measured_results, of_arm={"speedup_of_medians": median})
    assert not lacks(said, "2proc: 1.60x", "1.45x (1.38 to 1.52)", told)
    assert ("disagree" in said) == ("disagree" in told)
