import threading

from tasks.services.follower import attempt_within
from tasks.services.tracked import collect_report, describe_comparison, make_step_point
from tasks.services.trackers.mlflow import choose_uri
from tests.tracked_run import cell_facts, report_results, step_event, tracked_params, write_comparison


def _digest(params, data, **run):
    facts = cell_facts(params.baseline, params).model_copy(update=run)
    return describe_comparison(params, facts, slices=data / "slices", machine=data / "machine.json").digest


def test_a_report_is_sent_without_what_is_published_and_without_that_of_a_search(tmp_path):
    sent = {"index.html", "blocks.parquet", "charts/a.svg"}
    for name in (*sent, "hub/model.pt", "README.md", "search.html", "search.md", "search/a.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert set(collect_report(report_results(None), tmp_path).files) == sent


def test_identity_is_that_of_params_code_model_machine_and_data_and_of_nothing_else(tmp_path):
    params = tracked_params()
    write_comparison(tmp_path, params)
    upload = params.upload.model_copy(update={"repo_id": "me/model"})
    tracking = params.tracking.model_copy(update={"uri": "http://elsewhere"})
    other = params.model_copy(update={"description": "other words", "upload": upload, "tracking": tracking})
    assert _digest(other, tmp_path) == _digest(params, tmp_path)
    seeded = params.model_copy(update={"train": params.train.model_copy(update={"seed": 7})})
    digests = {_digest(params, tmp_path), _digest(seeded, tmp_path)}
    digests |= {_digest(params, tmp_path, **{name: "7"}) for name in ("numerics_version", "base_model_digest")}
    for file, old, new in (("machine.json", '"digest": "', '"digest": "x'), ("slices/manifest.json", "data of", "no")):
        (tmp_path / file).write_text((tmp_path / file).read_text().replace(old, new))
        digests.add(_digest(params, tmp_path))
    assert len(digests) == 6


def test_a_step_without_a_target_has_no_loss_to_be_tracked():
    event = step_event(4)
    assert make_step_point(event, timestamp_ms=1).values["loss"] == event["loss"]
    for without in ({"num_targets": 0}, {"num_tokens": 0}):
        assert "loss" not in make_step_point(event | {"loss": 0.0} | without, timestamp_ms=1).values


def test_params_yaml_then_the_environment_then_a_file_here_say_where_runs_are_kept(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    copy = tmp_path / ".dvc/tmp/exps/copy"
    copy.mkdir(parents=True)
    for folder in (tmp_path, copy):  # `dvc exp run --temp` removes it
        monkeypatch.chdir(folder)
        assert choose_uri(tracked_params().tracking.uri) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://from-environment")
    assert choose_uri(tracked_params().tracking.uri) == "http://from-environment"
    assert choose_uri(tracked_params(uri="http://from-params").tracking.uri) == "http://from-params"


def test_a_call_that_does_not_end_is_left_alone_after_its_bound():
    never = threading.Event()
    assert attempt_within(0.05, never.wait) == (None, "no answer within 0 seconds")
    never.set()
    assert attempt_within(5, lambda: 7) == (7, None)
