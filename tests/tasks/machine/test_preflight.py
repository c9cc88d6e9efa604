"""Whether the machine is fit to measure on: provoked for real where it can be."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from ddp_audit.process.wording import explain
from tasks.machine.host_checks import LARGEST_LOAD, check_cores, check_disk, check_load, check_memory
from tasks.machine.host_facts import BusyProcess, Load, list_our_pids, watch_load
from tasks.machine.preflight import judge_checks, run_preflight
from tasks.params import load_params
from tasks.records.measurement import Preflight, PreflightCheck
from tests.machines import make_machine

SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


@pytest.fixture
def stranger():
    """The pid of a busy process that does not descend from this one."""
    orphaning = 'setsid "$0" -c "$1" > /dev/null 2>&1 & echo $!'
    pid = int(subprocess.check_output(["sh", "-c", orphaning, sys.executable, SPIN]))
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_a_busy_process_of_somebody_else_makes_the_machine_unfit(stranger, project, tmp_path, caplog):
    params = load_params(project / "presets" / "embedded.yaml")
    assert stranger not in list_our_pids()
    with caplog.at_level(logging.INFO):
        result = run_preflight(params, make_machine(), cells=list(params.cells), device="cpu", folder=tmp_path)
    assert result.verdict == "not fit to measure"
    remedies = {check.name: check.remedy for check in result.checks if check.verdict == "warning"}
    remedy = remedies["load by others"]
    assert "end " in remedy
    assert remedy in caplog.text
    assert Preflight.model_validate_json(result.model_dump_json()) == result


def test_our_own_busy_child_is_no_load_by_others():
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        time.sleep(0.2)
        load = watch_load(0.5)
        child.kill()
    assert load.ours > 0.1
    assert child.pid not in [process.pid for process in load.busiest]
    assert load.ours + load.others <= load.num_cpus + 0.1


def test_a_little_load_is_allowed_and_more_is_not_and_none_is_blamed_for_what_it_does_not_explain():
    small = BusyProcess(pid=7, name="bystander", cores=0.001)
    load = Load(seconds=1.0, num_cpus=8, ours=0.0, others=8 * LARGEST_LOAD, stolen=2.9, busiest=(small,))
    assert check_load(load).verdict == "ok"
    check = check_load(replace(load, others=8 * LARGEST_LOAD + 0.01))
    assert (check.verdict, check.code, check.numbers["stolen"]) == ("warning", "loud", 2.9)
    assert "bystander" not in f"{check.found} {check.remedy}"
    assert check_load(None).verdict == "not checked"


@pytest.mark.parametrize(
    ("threads", "num_cpus", "limits", "shown"),
    [
        (2, 4, {}, {}),
        (2, 3, {}, {"cpus": 3}),
        (2, 4, {"num_physical": 2}, {"cpus": 4, "physical": 2}),
        (1, 4, {"quota": 1.5}, {"quota": 1.5, "needed": 2}),
    ],
)
def test_every_computing_thread_needs_a_physical_core_within_the_quota(threads, num_cpus, limits, shown):
    limits = {"num_physical": None, "quota": None, **limits}
    check = check_cores("2proc", world_size=2, threads_per_rank=threads, device="cpu", num_cpus=num_cpus, **limits)
    assert check.code == ("too_few_cores" if shown else "ok")
    assert shown.items() <= check.numbers.items()
    assert ("train.threads_per_rank to 1" in str(check.remedy)) is (bool(shown) and threads == 2)


def test_a_full_disk_is_found_and_the_folder_need_not_exist(tmp_path):
    folder = tmp_path / "not" / "yet"
    assert check_disk(folder, needed_gib=0.0).verdict == "ok"
    full = check_disk(folder, needed_gib=2.0**30)
    assert (full.verdict, full.code, full.numbers["folder"]) == ("warning", "too_little_disk", str(tmp_path))
    assert not folder.exists()


def test_ranks_that_do_not_fit_into_memory_are_found():
    assert check_memory(0, device="cpu", num_parameters=10**6).verdict == "ok"
    assert check_memory(10**6, device="cpu", num_parameters=None).verdict == "warning"
    assert check_memory(1, device="cpu", num_parameters=10**12).verdict == "warning"
    # On CUDA the model stands in the GPU's memory.
    on_gpu = check_memory(1, device="cuda", num_parameters=10**12)
    assert on_gpu.numbers["needed_gib"] == pytest.approx(0.825)


def test_the_verdict_is_fit_unless_a_check_warns():
    fine = PreflightCheck.judge("a", explain("loud", "{share} of 2", share=1))
    unread = PreflightCheck.not_checked("b", "not_shown", "it is not shown")
    warning = PreflightCheck.judge("c", explain("loud", "{share} of 2", share=9), remedy="do d")
    assert [(one.code, one.numbers) for one in (fine, warning)] == [("ok", {"share": 1}), ("loud", {"share": 9})]
    assert judge_checks([fine, unread]).verdict == "fit to measure"
    assert judge_checks([fine, warning]).verdict == "not fit to measure"
