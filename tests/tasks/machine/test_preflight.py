"""Whether the machine is fit to measure on: provoked for real where it can be."""

import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from ddp_audit.process.wording import explain
from tasks.machine.host_checks import LARGEST_LOAD, check_cores, check_disk, check_load, check_memory
from tasks.machine.host_facts import BusyProcess, Load, list_our_pids, watch_load
from tasks.machine.preflight import judge_checks, run_preflight
from tasks.params import load_params
from tasks.records.measurement import Preflight, PreflightCheck
from tests.machines import make_machine
from tests.processes import run_python

SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
MACHINE = make_machine()


@pytest.fixture
def params(project):
    """The embedded comparison."""
    return load_params(project / "presets" / "embedded.yaml")


@pytest.fixture
def stranger():
    """The pid of a busy process that does not descend from this one."""
    orphaning = (
        "import subprocess, sys\n"
        f"print(subprocess.Popen([sys.executable, '-c', {SPIN!r}], start_new_session=True,\n"
        "      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    )
    pid = int(run_python("-c", orphaning).stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


def named(result, name):
    return next(check for check in result.checks if check.name == name)


def test_a_busy_process_of_somebody_else_makes_the_machine_unfit(stranger, params, tmp_path, caplog):
    assert stranger not in list_our_pids()
    with caplog.at_level(logging.INFO):
        result = run_preflight(params, MACHINE, cells=list(params.cells), device="cpu", folder=tmp_path)
    assert result.verdict == "not fit to measure"
    load = named(result, "load by others")
    assert load.verdict == "warning"
    assert "end " in load.remedy
    assert load.remedy in caplog.text
    assert Preflight.model_validate_json(result.model_dump_json()) == result


def test_our_own_busy_child_is_no_load_by_others():
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        time.sleep(0.2)
        load = watch_load(0.5)
        child.kill()
    assert load.ours > 0.1
    assert child.pid not in [process.pid for process in load.busiest]
    assert load.ours + load.others <= load.num_cpus + 0.1


def a_load(others, *, busiest=(), stolen=0.0):
    return Load(seconds=1.0, num_cpus=8, ours=0.0, others=others, stolen=stolen, busiest=busiest)


def test_a_little_load_is_allowed_and_more_is_not():
    assert check_load(a_load(8 * LARGEST_LOAD)).verdict == "ok"
    assert check_load(a_load(8 * LARGEST_LOAD + 0.01)).verdict == "warning"
    assert check_load(None).verdict == "not checked"


def test_load_that_no_process_explains_is_not_blamed_on_one():
    small = BusyProcess(pid=7, name="bystander", cores=0.05)
    check = check_load(a_load(3.0, busiest=(small,), stolen=2.9))
    assert (check.verdict, check.code, check.numbers["stolen"]) == ("warning", "loud", 2.9)
    assert "bystander" not in f"{check.found} {check.remedy}"


def cores(*, threads=1, ranks=2, device="cpu", cpus=4, **limits):
    limits = {"num_physical": None, "quota": None, **limits}
    return check_cores("2proc", world_size=ranks, threads_per_rank=threads, device=device, num_cpus=cpus, **limits)


def test_every_computing_thread_needs_a_physical_core_within_the_quota():
    assert cores(threads=2, cpus=4).verdict == "ok"
    assert cores(threads=2, cpus=3).verdict == "warning"
    siblings = cores(threads=2, cpus=4, num_physical=2)
    assert (siblings.code, siblings.numbers["cpus"], siblings.numbers["physical"]) == ("too_few_cores", 4, 2)
    assert "train.threads_per_rank to 1" in str(siblings.remedy)
    quota = cores(threads=1, cpus=4, quota=1.5)
    assert (quota.code, quota.numbers["quota"], quota.numbers["needed"]) == ("too_few_cores", 1.5, 2)


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
