"""A baseline that one process beats at its own work is slowed, or not at its best."""

import pytest

from tasks.gates.baseline import check_baseline
from tests.tasks.reporting.blocks import SECONDS, arm_blocks, write_blocks

WRAPPED, ALONE = "1proc in a DDP wrapper", "2proc, one copy alone"


def make_arm(name, times):
    """Return an arm that takes the baseline's time, divided by so much."""
    return arm_blocks(name, turn=None, seconds=2 * 1.02 * SECONDS["1proc"] / times)


def make_tuned(times):
    tuned = {"arm": "1proc with micro-batches of 4", "kind": "tuned", "phase": "waterfall"}
    return {"beside": [make_arm("1proc", times).model_copy(update=tuned)]}


def make_copies(times):
    """Return ranks without an exchange that are so many times as fast as as many copies of one process."""
    silent, slower = (arm_blocks("2proc, no communication", turn=None, seconds=0.06 * each) for each in (1, times))
    copies = slower.model_copy(update={"arm": "2proc, independent copies", "kind": "independent"})
    return [silent], {"beside": [copies]}


def make_noisy(name):
    arm, seconds = arm_blocks(name), (0.07, 0.4)
    arm.blocks[:] = [one.model_copy(update={"seconds": seconds[one.turn % 2]}) for one in arm.blocks]
    return arm


def make_plain(cores, **more):
    return arm_blocks("1proc", turn=None, cores_used=[cores], **more)


@pytest.mark.parametrize(
    ("changed", "beside", "code"),
    [
        ([], make_tuned(1.05), "passed"),
        ([make_arm(WRAPPED, 1.1)], {}, "slowed"),
        # Half of the work.
        ([make_arm(ALONE, 2.4)], {}, "slowed"),
        # What one process does and several ranks do not is slow in all that is timed in one process.
        (*make_copies(1.2), "slowed"),
        (*make_copies(1.04), "passed"),
        *(([arm], {}, "passed") for arm in (make_plain(0.97), make_plain(0.5, others_share=0.4))),
        ([], make_tuned(1.3), "not_at_its_best"),
        # What asks how many ranks there are is as slow in all arms of one rank.
        ([make_noisy(ALONE)], {}, "nothing_beside"),
        # Alike by chance, where all else varied.
        ([make_arm(WRAPPED, 1.1), make_noisy(ALONE)], {}, "nothing_beside"),
        # All of it varied so much that nothing follows.
        ([make_noisy(WRAPPED), make_noisy(ALONE)], {}, "nothing_beside"),
    ],
)
def test_the_baseline_is_as_fast_as_whatever_was_timed_beside_it(tmp_path, expect, changed, beside, code):
    expect(check_baseline, None, "1proc")  # nothing was measured
    write_blocks(tmp_path, *changed, **beside)
    expect(check_baseline, code, "1proc", outcome="failed" if code == "slowed" else "not checked")
    expect(check_baseline, None)
