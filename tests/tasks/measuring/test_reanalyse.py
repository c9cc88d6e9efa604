"""The speedups are worked out again from the raw blocks of a report, and come out as published."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.gates.checks import CHECKS_OF_BLOCKS
from tasks.measuring.reanalyse import make_timed_turns
from tasks.measuring.speedups import measure_speedups
from tasks.records.blocks import BLOCKS_FILE, ArmBlocks, BlockWork, read_blocks, write_blocks
from tasks.records.measurement import Measurement
from tests.noisy_machine import TROUBLES, NoisyMachine
from tests.tasks.measuring.test_speedups import ARMS
from tests.tasks.reporting.measured import arm, estimate, measurement
from training.process.files import write_json


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A report of what was measured on a machine with a neighbour."""
    machine = NoisyMachine(TROUBLES["neighbour a fifth of the time"], 1.5, 5)
    found = measure_speedups(
        ARMS, machine, half_width=0.03, max_seconds=60, most_share=0.05, of=lambda block: block.seconds, seed=5,
        advance=lambda _: None, clock=lambda: machine.now,
    )  # fmt: skip
    blocks = [
        ArmBlocks(
            phase="speedup", arm=name, cell=name, kind="as trained",
            blocks=[
                BlockWork(
                    turn=one.turn, launch=one.launch, others_share=one.others_share,
                    step_seconds=one.step_seconds.tolist(), range="0-8", steps=[1, 2, 3, 4], seconds=4 * one.seconds,
                    num_samples=4, num_tokens=40, num_targets=40, num_positions=48, num_micro_batches=4, rows="",
                    rows_of_first_rank="", loss_sum=None, grad_norm_sum=1.0, num_exchanges=[0], exchange_bytes=None,
                )
                for one in timed
            ],
        )
        for name, timed in ((one.name, found.timed_turns.blocks[one.name]) for one in ARMS)
    ]  # fmt: skip
    write_blocks(tmp_path / BLOCKS_FILE, blocks)
    interval = found.intervals["2proc"]
    two = arm("2proc", 2, seconds=0.1, speedup=estimate(interval.value, interval.relative_half_width))
    told: Measurement = measurement(arms=[arm("1proc", 1), two])
    cells = [{"cell": name, "standing": {"state": "proven", "gates": []}} for name in ("1proc", "2proc")]
    write_json(tmp_path / "results.json", {"measurement": told.model_dump(mode="json"), "cells": cells})
    assert len(make_timed_turns(read_blocks(tmp_path / BLOCKS_FILE)).turns) == len(found.timed_turns.turns)
    return tmp_path


def _reanalyse(reports: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tasks.measuring.reanalyse", "--reports", str(reports), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_quiet_turns_give_what_was_published_and_all_of_them_something_else(reports: Path) -> None:
    said = _reanalyse(reports)
    assert said.returncode == 0, said.stderr
    (row,) = [line for line in said.stdout.splitlines() if "2proc" in line]
    _, _, published, _, quiet, every, medians, trimmed, starts, _ = (cell.strip() for cell in row.split("│"))
    assert published.split()[0] == quiet.split()[0] != every.split()[0]
    assert medians.endswith("x")
    assert trimmed.endswith("x")
    assert starts.endswith("%")
    # Whoever counts every turn finds no other figure in both columns.
    row = next(line for line in _reanalyse(reports, "--others-share", "1").stdout.splitlines() if "2proc" in line)
    cells = [cell.strip() for cell in row.split("│")]
    assert cells[4] == cells[5] == every


@pytest.mark.parametrize(
    ("gates", "is_told"),
    [(["Quiet enough to tell"], True), (["Not data-bound"], False), (["Quiet enough to tell", "Equal tokens"], False)],
)
def test_what_a_gate_withholds_is_withheld_unless_it_wanted_quiet_turns_alone(
    reports: Path, gates: list[str], is_told: bool
) -> None:
    assert "Quiet enough to tell" in [check.name for check in CHECKS_OF_BLOCKS]
    results = json.loads((reports / "results.json").read_bytes())
    results["cells"][1]["standing"] = {"state": "withheld", "gates": gates}
    write_json(reports / "results.json", results)
    (row,) = [line for line in _reanalyse(reports).stdout.splitlines() if "2proc" in line]
    assert row.count("x (") == (3 if is_told else 0)
    assert row.count("withheld") == (0 if is_told else 7)


@pytest.mark.parametrize(
    ("state", "is_other", "told"),
    [
        ("proven", False, "2proc "),
        ("unproven", False, "2proc (unproven) "),
        ("proven", True, "2proc (another training, speed per token) "),
    ],
)
def test_what_is_no_proven_speedup_is_called_what_it_is(reports: Path, state: str, is_other: bool, told: str) -> None:
    results = json.loads((reports / "results.json").read_bytes()) | {"comparison": {"unit": "token"}}
    results["cells"][1] |= {"standing": {"state": state, "gates": []}, "is_other_training": is_other}
    write_json(reports / "results.json", results)
    (row,) = [line for line in _reanalyse(reports).stdout.splitlines() if "2proc" in line]
    assert row.split("│")[1].strip() == told.strip()


def test_a_report_whose_speed_was_not_measured_says_so(reports: Path) -> None:
    write_blocks(reports / BLOCKS_FILE, [])
    said = _reanalyse(reports)
    assert said.returncode == 3
    assert said.stderr.splitlines()[-1].endswith("has no timed blocks: measure.speed was off; switch it on")


def test_a_report_without_blocks_is_refused_in_one_line(reports: Path) -> None:
    (reports / BLOCKS_FILE).write_bytes(b"PAR1 and nothing else")
    said = _reanalyse(reports)
    assert said.returncode == 3
    (line,) = said.stderr.splitlines()
    assert line.startswith(f"reanalyse: {reports / BLOCKS_FILE}: ")
