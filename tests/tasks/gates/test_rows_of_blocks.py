"""The timed rows have as many tokens as those of the training."""

import pytest

from tasks.gates.asked_for import check_timed_rows
from tests.tasks.reporting.blocks import arm_blocks, write_blocks
from tests.tasks.reporting.comparison import edit_steps, outputs_of


def test_rows_of_the_whole_training_pass_and_longer_ones_fail(tmp_path, params):
    write_blocks(tmp_path)
    found = check_timed_rows(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == "passed", found.compared
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, num_tokens=36))
    found = check_timed_rows(outputs_of(tmp_path, params), "2proc")
    assert found.code == "more_tokens"
    assert (found.numbers["apart"], found.numbers["most_apart"]) == pytest.approx((0.143, 0.1), abs=5e-3)


def test_how_far_they_may_be_apart_follows_from_the_tokens_of_steps_and_not_from_their_padding(tmp_path, params):
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, num_tokens=36))

    def judge(**changes):
        edit_steps(tmp_path, "2proc", **changes)
        found = check_timed_rows(outputs_of(tmp_path, params), "2proc")
        return found.numbers["most_apart"] if found.verdict == "failed" else None

    # A step of few rows, padded to the length of all packs.
    assert judge(num_tokens=16, num_padding_tokens=1600) == pytest.approx(0.1, abs=5e-3)
    # A step of long rows in packs of one length.
    assert not judge(num_tokens=32, num_padding_tokens=0)
