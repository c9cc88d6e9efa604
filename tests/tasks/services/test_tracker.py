import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.params import Params
from tasks.services.final_figures import collect_final_figures, make_tables
from tasks.services.follower import attempt_within
from tasks.services.tracked import (
    collect_report,
    describe_comparison,
    flatten,
    make_step_point,
    read_segment_points,
)
from tasks.services.trackers.mlflow import choose_uri
from tests.tracked_run import (
    NUM_STEPS,
    cell_facts,
    report_results,
    step_event,
    tracked_params,
    write_comparison,
)


@pytest.fixture
def params() -> Params:
    return tracked_params()


def _digest(params: Params, data: Path, **run: str) -> str:
    facts = cell_facts(params.baseline, params).model_copy(update=run)
    return describe_comparison(params, facts, slices=data / "slices", machine=data / "machine.json").digest


def test_importing_the_tracker_imports_no_mlflow(project: Path) -> None:
    code = "import sys, tasks.services.tracker, tasks.services.tracker_ui; print('mlflow' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_a_report_is_sent_without_what_is_published_and_without_that_of_a_search(
    params: Params, tmp_path: Path
) -> None:
    sent = {"index.html", "blocks.parquet", "charts/a.svg"}
    for name in (*sent, "hub/model.pt", "README.md", "search.html", "search.md", "search/a.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert set(collect_report(report_results(params, speedup=None), tmp_path).files) == sent


def test_held_out_rows_of_another_source_are_told_from_a_range_with_the_same_numbers(
    params: Params, tmp_path: Path
) -> None:
    dataset = params.dataset.model_copy(update={"heldout_source": "path:test.jsonl"})
    for heldout in (params.heldout, params.ranges[0]):
        params = params.model_copy(update={"dataset": dataset, "heldout": heldout})
        write_comparison(tmp_path, params)
        told = describe_comparison(
            params, cell_facts(params.baseline, params), slices=tmp_path / "slices", machine=tmp_path / "machine.json"
        )
        assert [row.context for row in told.rows] == ["training"] * len(params.ranges) + ["evaluation"]
        assert (told.rows[-1].source, told.rows[-1].digest) == ("path:test.jsonl", f"data of heldout-{heldout}")
        assert len({row.name for row in told.rows}) == len(told.rows)


def test_identity_ignores_where_it_is_tracked_and_published_and_its_description(params: Params, tmp_path: Path) -> None:
    write_comparison(tmp_path, params)
    upload = params.upload.model_copy(update={"repo_id": "me/model"})
    tracking = params.tracking.model_copy(update={"uri": "http://elsewhere"})
    search = params.search.model_copy(update={"trials": 9})
    changes = {"description": "other words", "upload": upload, "tracking": tracking, "search": search}
    other = params.model_copy(update=changes)
    assert _digest(other, tmp_path) == _digest(params, tmp_path)


def test_identity_changes_with_params_code_model_machine_and_data(params: Params, tmp_path: Path) -> None:
    write_comparison(tmp_path, params)
    digests = {_digest(params, tmp_path)}
    digests.add(_digest(params, tmp_path, numerics_version=7))
    digests.add(_digest(params, tmp_path, base_model_digest="other model"))
    digests.add(_digest(params.model_copy(update={"train": params.train.model_copy(update={"seed": 7})}), tmp_path))
    machine = json.loads((tmp_path / "machine.json").read_bytes())
    (tmp_path / "machine.json").write_text(json.dumps({**machine, "digest": "other machine"}))
    digests.add(_digest(params, tmp_path))
    manifest = (tmp_path / "slices" / "manifest.json").read_text()
    (tmp_path / "slices" / "manifest.json").write_text(manifest.replace("data of 0-80", "other data"))
    digests.add(_digest(params, tmp_path))
    assert len(digests) == 6


def test_params_become_one_level_of_text_below_the_limit_of_mlflow() -> None:
    value = {"a": {"b": True, "c": None}, "ranges": ["0-8", "8-9"], "gpus": [{"name": "T4"}], "text": "x" * 7000}
    flat = flatten(value)
    assert {key: flat[key] for key in ("a.b", "a.c", "ranges", "gpus.0.name")} == {
        "a.b": "true",
        "a.c": "null",
        "ranges": "0-8, 8-9",
        "gpus.0.name": "T4",
    }
    assert len(flat["text"]) == 6000


def test_tokens_per_second_of_a_step_is_its_tokens_over_its_seconds() -> None:
    assert make_step_point(step_event(4), timestamp_ms=1).values["tokens_per_second"] == 104 / 0.5


def test_a_value_that_a_step_has_not_is_absent() -> None:
    assert "grad_norm" not in make_step_point(step_event(3), timestamp_ms=1).values
    assert "grad_norm" in make_step_point(step_event(2), timestamp_ms=1).values


def test_a_step_without_a_target_has_no_loss_to_be_tracked() -> None:
    event = step_event(4)
    assert make_step_point(event, timestamp_ms=1).values["loss"] == event["loss"]
    for without in ({"num_targets": 0}, {"num_tokens": 0}):
        assert "loss" not in make_step_point(event | {"loss": 0.0} | without, timestamp_ms=1).values


def test_replayed_times_are_the_start_of_the_segment_plus_the_seconds_of_its_steps(
    params: Params, tmp_path: Path
) -> None:
    write_comparison(tmp_path, params)
    points, epoch = read_segment_points(tmp_path / "runs" / "1proc" / "segments" / "0-80-epoch-1")
    start = 1_772_366_400_000  # 2026-03-01T12:00:00Z
    assert [point.timestamp_ms - start for point in points] == [500 * step for step in range(1, NUM_STEPS + 1)]
    assert (epoch.step, epoch.values["epoch/train_seconds"]) == (NUM_STEPS, 2.5)
    assert "epoch/peak_memory_gib" not in epoch.values


def test_a_withheld_speedup_is_no_figure(params: Params) -> None:
    assert collect_final_figures(report_results(params, speedup=1.5))["2proc"]["final/speedup"] == 1.5
    assert collect_final_figures(report_results(params, speedup=1.5))[None]["final/speedup"] == 1.5
    assert "final/speedup" not in collect_final_figures(report_results(params, speedup=1.5, is_proven=False))[None]
    withheld = collect_final_figures(report_results(params, speedup=None))
    assert not [key for figures in withheld.values() for key in figures if "speedup" in key]
    assert withheld["2proc"] == {
        "final/seconds_per_epoch": 12.5,
        "final/step_seconds": 0.5,
        "final/tokens_per_second": 2000.0,
        "final/samples_per_second": 10.0,
        "final/tokens_per_second_of_whole_training": 1000.0,
        "final/samples_per_second_of_whole_training": 5.0,
        "final/heldout_loss": 3.25,
        "final/heldout_perplexity": 25.75,
    }
    assert withheld[None] == {
        "final/tokens_per_second": 2000.0, "final/base_heldout_loss": 3.25, "final/base_heldout_perplexity": 25.75,
    }  # fmt: skip


def test_an_unproven_speedup_says_so_in_the_name_of_every_figure_and_column(params: Params) -> None:
    unproven = report_results(params, speedup=1.5, is_proven=False)
    figures = collect_final_figures(unproven)
    assert {key: value for key, value in figures["2proc"].items() if "speed" in key or "karp" in key} == {
        "final/unproven_speedup": 1.5,
        "final/unproven_speedup_low": 1.25,
        "final/unproven_speedup_high": 1.75,
        "final/unproven_karp_flatt": 0.25,
    }
    rows = make_tables(unproven)["cells"]
    assert len({tuple(row) for row in rows}) == 1
    assert [(row["cell"], row["unproven_speedup"], "speedup" in row) for row in rows] == [
        ("1proc", None, False),
        ("2proc", 1.5, False),
    ]


def test_a_figure_that_a_withheld_cell_still_has_is_not_shown(params: Params) -> None:
    left = report_results(params, speedup=1.5)
    left["cells"][1]["standing"]["state"] = "withheld"
    assert not [key for key in collect_final_figures(left)["2proc"] if "speedup" in key or "efficiency" in key]
    (row,) = [row for row in make_tables(left)["cells"] if row["cell"] == "2proc"]
    assert {row.get(key) for key in ("speedup", "unproven_speedup", "parallel_efficiency")} == {None}


def test_params_yaml_then_the_environment_then_a_file_here_say_where_runs_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert choose_uri(tracked_params().tracking.uri) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://from-environment")
    assert choose_uri(tracked_params().tracking.uri) == "http://from-environment"
    assert choose_uri(tracked_params(uri="http://from-params").tracking.uri) == "http://from-params"


def test_a_call_that_does_not_end_is_left_alone_after_its_bound() -> None:
    import threading

    never = threading.Event()
    assert attempt_within(0.05, never.wait) == (None, "no answer within 0 seconds")
    never.set()
    assert attempt_within(5, lambda: 7) == (7, None)
