"""`make gpu-day`: a part that fails or takes too long is named, and what nobody measured stays empty."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_day.__main__ import run_part
from benchmarks.gpu_day.parts import Part
from benchmarks.gpu_day.summary import Ended, write_summary

_CARD = {"card": "NVIDIA H100 80GB HBM3", "num_cards": 1, "memory_gib": 79.2, "versions": {"torch": "2"}}


def _make_part(folder: Path, program: str, *, limit_seconds: float = 60.0) -> Part:
    return Part(name="a part", folder=folder, arguments=["-c", program], limit_seconds=limit_seconds)


_RANKS_FAIL = """
print("Traceback (most recent call last):\\n  in a rank")
print("torch.OutOfMemoryError: CUDA out of memory", flush=True)
raise SystemError("a rank failed")
"""


def test_of_several_errors_the_first_is_the_reason(tmp_path: Path) -> None:
    assert (
        run_part(_make_part(tmp_path, _RANKS_FAIL), 100.0).how == "failed: torch.OutOfMemoryError: CUDA out of memory"
    )
    assert run_part(_make_part(tmp_path, "raise SystemExit(3)"), 100.0).how == "failed: it said nothing"


def test_what_a_part_found_is_there_and_one_that_fails_is_named_by_its_error(tmp_path: Path) -> None:
    (tmp_path / "found.json").write_text(json.dumps({"loss": 2.5}))
    assert run_part(_make_part(tmp_path, "print('as it should')"), 100.0).how == "finished"
    failed = run_part(_make_part(tmp_path, "raise ValueError('too small')"), 100.0)
    assert (failed.how, failed.found) == ("failed: ValueError: too small", {"loss": 2.5})
    assert "as it should" not in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(("limit", "left", "how"), [(0.5, 100.0, "ended after its 0 s"), (60.0, 5.0, "not begun")])
def test_a_part_has_no_more_time_than_there_is(limit: float, left: float, how: str, tmp_path: Path) -> None:
    ended = run_part(_make_part(tmp_path, "import time; time.sleep(60)", limit_seconds=limit), left)
    assert ended.how.startswith(how)
    assert ended.seconds < 30


def test_the_summary_has_the_figures_that_were_found_and_no_others(tmp_path: Path) -> None:
    ended = [
        Ended(name="model", how="finished", seconds=3.0, found=_CARD),
        Ended(name="steps", how="finished", seconds=30.0, found={"tokens_per_second": 1000.0, "allocated_gib": 2.5}),
        Ended(name="more", how="failed: a | b", seconds=1.0, found={}),
    ]
    write_summary(tmp_path, ended, flops_per_token=989.5e9 / 2, is_phantom=False)
    lines = (tmp_path / "summary.md").read_text().splitlines()
    (steps,) = [line for line in lines if line.startswith("| steps")]
    # 1,000 tokens of half a peak second each.
    assert steps == "| steps | finished | 30 | 1,000 |  | 50.0% |  | 2.50 |  |  |  |"
    (more,) = [line for line in lines if line.startswith("| more")]
    assert more == "| more | failed: a / b | 1 |  |  |  |  |  |  |  |  |"


def test_of_a_phantom_neither_times_nor_losses_are_given(tmp_path: Path) -> None:
    found = {"tokens_per_second": 1000.0, "loss": 0.0, "allocated_gib": 2.5}
    ended = [
        Ended(name="model", how="finished", seconds=3.0, found=_CARD),
        Ended(name="steps", how="finished", seconds=30.0, found=found),
    ]
    write_summary(tmp_path, ended, flops_per_token=1e9, is_phantom=True)
    assert "| steps | finished | 30 |  |  |  |  | 2.50 |  |  |  |" in (tmp_path / "summary.md").read_text()
    kept = json.loads((tmp_path / "summary.json").read_bytes())["parts"][1]["found"]
    assert kept == {"allocated_gib": 2.5}


def test_without_a_prepared_folder_it_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.gpu_day.__main__ import main

    monkeypatch.setattr(sys, "argv", ["gpu_day", "--prepared", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "benchmarks.throughput.prepare --out" in capsys.readouterr().err
