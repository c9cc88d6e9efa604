"""A baseline that one process beats at its own work is slowed, or not at its best."""

import pytest

from tasks.gates.baseline import check_baseline
from tests.tasks.reporting.blocks import SECONDS, arm_blocks, write_blocks

WRAPPED, ALONE = "1proc in a DDP wrapper", "2proc, one copy alone"


def make_arm(name, times, share=1.0):
    """Return an arm that does the baseline's work, or a share of it, so many times as fast."""
    return arm_blocks(name, turn=None, seconds=share * 2 * 1.02 * SECONDS["1proc"] / times)


def make_tuned(times):
    tuned = {"arm": "1proc with micro-batches of 4", "kind": "tuned", "phase": "waterfall"}
    return {"beside": [make_arm("1proc", times).model_copy(update=tuned)]}


def make_copies(times):
    """Return ranks without an exchange that are so many times as fast as as many copies of one process."""
    silent = {"arm": "2proc, no communication", "kind": "silent"}
    copies = {"arm": "2proc, independent copies", "kind": "independent"}
    arms = [(silent, 1.0), (copies, times)]
    return [arm_blocks(silent["arm"], turn=None, seconds=0.06 * each).model_copy(update=kind) for kind, each in arms]


def make_noisy(name):
    arm = arm_blocks(name)
    times = {"update": {"seconds": 0.07}}, {"update": {"seconds": 0.4}}
    arm.blocks[:] = [one.model_copy(**times[one.turn % 2]) for one in arm.blocks]
    return arm


def make_plain(cores, **more):
    return arm_blocks("1proc", turn=None, cores_used=[cores], **more)


@pytest.mark.parametrize(
    ("changed", "beside", "code", "known"),
    [
        ([], make_tuned(1.05), "passed", {"arms": 3}),
        ([make_arm(WRAPPED, 1.1)], {}, "slowed", {"arm": WRAPPED, "gain": 1.1}),
        ([make_arm(ALONE, 1.2, 0.5)], {}, "slowed", {"arm": ALONE, "gain": 1.2}),
        # What one process does and several ranks do not is slow in all that is timed in one process.
        ([make_copies(1.2)[0]], {"beside": make_copies(1.2)[1:]}, "slowed", {"arm": "2proc, no communication"}),
        ([make_copies(1.04)[0]], {"beside": make_copies(1.04)[1:]}, "passed", {"arms": 3}),
        ([make_plain(0.91)], {}, "waited", {"computed": 0.92}),
        *(([arm], {}, "passed", {}) for arm in (make_plain(0.97), make_plain(0.5, others_share=0.4))),
        ([], make_tuned(1.3), "not_at_its_best", {"outcome": "not checked"}),
        ([], {"blocks": [arm_blocks("1proc"), arm_blocks("2proc")]}, "nothing_beside", {"outcome": "not checked"}),
        # What asks how many ranks there are is as slow in all arms of one rank.
        ([make_noisy(ALONE)], {}, "nothing_beside", {"outcome": "not checked"}),
        # All of it varied so much that nothing follows.
        ([make_noisy(WRAPPED), make_noisy(ALONE)], {}, "nothing_beside", {"outcome": "not checked"}),
    ],
)
def test_the_baseline_is_as_fast_as_whatever_was_timed_beside_it(tmp_path, expect, changed, beside, code, known):
    expect(check_baseline, None, "1proc")  # nothing was measured
    write_blocks(tmp_path, *changed, **beside)
    expect(check_baseline, code, "1proc", within=0.03, **known)
    expect(check_baseline, None)
