"""Turns that count are quiet ones; where louder ones were let in, the speedup is no longer that of this machine."""

import pytest

from tasks.gates.counted_blocks import check_quiet_turns
from tests.tasks.reporting.blocks import arm_blocks, write_blocks
from tests.tasks.reporting.comparison import outputs_of


def judged(folder, params):
    return check_quiet_turns(outputs_of(folder, params), "2proc")


def test_quiet_turns_pass_and_the_baseline_has_none_of_its_own(tmp_path, params):
    assert check_quiet_turns(outputs_of(tmp_path, params), "2proc") is None, "nothing was measured"
    write_blocks(tmp_path)
    found = judged(tmp_path, params)
    known = {"quiet_turns": 20, "turns": 20, "launches": 4, "most": 0.05, "others_share": 0.012}
    assert (found.code, found.numbers) == ("passed", known | {"cell": "2proc"})
    assert check_quiet_turns(outputs_of(tmp_path, params), "1proc") is None


def test_without_a_speedup_there_were_too_few(tmp_path, params):
    write_blocks(tmp_path, speedups={})
    found = judged(tmp_path, params)
    assert (found.outcome, found.code) == ("failed", "too_few_quiet_turns")
    assert found.remedy is not None
    assert "measure.others_share: 1" in found.remedy


@pytest.mark.parametrize(("share", "verdict"), [(0.04, "passed"), (0.3, "not checked")])
@pytest.mark.parametrize("cell", ["1proc", "2proc"])
def test_loud_turns_that_params_yaml_lets_count_leave_the_speedup_unproven(tmp_path, params, cell, share, verdict):
    write_blocks(tmp_path, arm_blocks(cell, turn=None, others_share=share), most_others_share=1.0)
    found = judged(tmp_path, params)
    assert found.outcome == verdict
    # The mean of both cells, the other's is 1 %.
    if verdict != "passed":
        assert (found.code, found.numbers["share"]) == ("others_on_the_cpus", pytest.approx(0.155))


def test_loud_turns_that_do_not_count_are_none_of_its_business_and_others_on_a_gpu_are(tmp_path, params):
    write_blocks(tmp_path, arm_blocks("2proc", turn=3, others_share=0.9))
    assert judged(tmp_path, params).outcome == "passed"
    write_blocks(tmp_path, arm_blocks("2proc", turn=3, has_others_on_gpu=True), most_others_share=1.0)
    assert judged(tmp_path, params).code == "others_on_the_gpus"
