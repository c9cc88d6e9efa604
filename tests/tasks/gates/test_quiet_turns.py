"""Turns that count are quiet ones; where louder ones were let in, the speedup is no longer that of this machine."""

import pytest

from tasks.gates.counted_blocks import check_quiet_turns
from tests.tasks.reporting.blocks import arm_blocks, write_blocks


def test_quiet_turns_pass_and_the_baseline_has_none_of_its_own(tmp_path, expect):
    expect(check_quiet_turns, None)  # nothing was measured
    write_blocks(tmp_path)
    known = {"quiet_turns": 20, "turns": 20, "launches": 4, "most": 0.05, "others_share": 0.012, "cell": "2proc"}
    assert expect(check_quiet_turns, "passed").numbers == known
    expect(check_quiet_turns, None, "1proc")


def test_without_a_speedup_there_were_too_few(tmp_path, expect):
    write_blocks(tmp_path, speedups={})
    assert "measure.others_share: 1" in expect(check_quiet_turns, "too_few_quiet_turns").remedy


@pytest.mark.parametrize("cell", ["1proc", "2proc"])
def test_loud_turns_that_params_yaml_lets_count_leave_the_speedup_unproven(tmp_path, expect, cell):
    # Others beside one cell alone; beside the other they used 1 %.
    for share, code, known in ((0.04, "passed", {}), (0.08, "others_on_the_cpus", {"share": 0.08})):
        write_blocks(tmp_path, arm_blocks(cell, turn=None, others_share=share), most_others_share=1.0)
        expect(check_quiet_turns, code, outcome="not checked", **known)


def test_loud_turns_that_do_not_count_are_none_of_its_business_and_others_on_a_gpu_are(tmp_path, expect):
    write_blocks(tmp_path, arm_blocks("2proc", turn=3, others_share=0.9))
    expect(check_quiet_turns, "passed")
    write_blocks(tmp_path, arm_blocks("2proc", turn=3, has_others_on_gpu=True), most_others_share=1.0)
    expect(check_quiet_turns, "others_on_the_gpus", outcome="not checked")
