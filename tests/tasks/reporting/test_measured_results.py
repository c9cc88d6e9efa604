"""What of a measurement reaches the results and the figures for machines."""

import json
from pathlib import Path

import pytest

from tasks.process.failure import DataError
from tasks.reporting import data_files
from tasks.reporting.collect import collect_results
from tasks.reporting.results import Results, read_results, write_results
from tasks.services.final_figures import collect_final_figures
from tests.tasks.reporting.comparison import outputs_of, write_comparison
from tests.tasks.reporting.measured import arm, estimate, measurement, waterfall, with_speedup, write_measurement
from tests.tasks.reporting.rendered import markdown_of


def test_the_reported_speedup_is_the_measured_one_and_the_whole_training_keeps_its_own(
    measured_results: Results, clean_results: Results
) -> None:
    one, two = measured_results.cells
    assert two.speedup == pytest.approx(68 / 42)
    assert two.parallel_efficiency == pytest.approx(34 / 42)
    assert two.measured_efficiency is not None
    assert two.measured_efficiency.high == pytest.approx(34 / 42 * 1.025)
    assert two.karp_flatt == pytest.approx((42 / 68 - 0.5) / 0.5)
    assert two.whole.speedup == 1.5625
    assert (one.speedup, one.parallel_efficiency, one.measured_speedup) == (1.0, 1.0, None)
    assert clean_results.cells[1].speedup is None


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "Invalid JSON"), ("{}", "Field required"), ('{"scaling": "none"}', "scaling"), ("", "Invalid JSON")],
)
def test_a_damaged_speed_json_is_one_clear_line(tmp_path: Path, content: str, says: str) -> None:
    params = write_comparison(tmp_path)
    (tmp_path / "measurements" / "speed.json").write_text(content)
    with pytest.raises(DataError, match=says) as refused:
        outputs_of(tmp_path, params)
    assert "speed.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_measurement_of_other_cells_is_refused(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    write_measurement(tmp_path, measurement(arms=[arm("1proc", 1), arm("2proc", 4)]))
    with pytest.raises(DataError, match=r"cells \(ranks\) 1proc \(1\), 2proc \(4\), params.yaml has 1proc \(1\), 2pro"):
        outputs_of(tmp_path, params)


def test_an_older_results_json_without_the_new_keys_is_still_read(tmp_path: Path, clean_results: Results) -> None:
    write_results(tmp_path / "results.json", clean_results)
    content = json.loads((tmp_path / "results.json").read_text())
    for key in ("measured_speedup", "measured_efficiency"):
        for cell in content["cells"]:
            del cell[key]
    del content["measurement"]
    (tmp_path / "results.json").write_text(json.dumps(content))
    assert read_results(tmp_path / "results.json") == clean_results


def test_metrics_and_tracker_get_the_measured_speedup_with_its_ends(measured_results: Results) -> None:
    metrics = data_files.collect_metrics(measured_results)
    assert (metrics["state"], metrics["cell"]) == ("proven", "2proc")
    assert metrics["speedup"] == pytest.approx(68 / 42)
    assert metrics["tokens_per_second"] == pytest.approx(15.5 / 0.042)
    found = collect_final_figures(measured_results.model_dump(mode="json"))
    figures = found["2proc"]
    for name in ("speedup", "tokens_per_second"):
        assert found[None][f"final/{name}"] == figures[f"final/{name}"] == metrics[name], name
    ends = (figures["final/speedup_low"], figures["final/speedup_high"])
    assert ends == (pytest.approx(68 / 42 * 0.975), pytest.approx(68 / 42 * 1.025))
    assert figures["final/parallel_efficiency"] == pytest.approx(34 / 42)
    assert figures["final/step_seconds"] == 0.042
    assert figures["final/speedup_of_whole_training"] == 1.5625
    assert figures["final/tokens_per_second_of_whole_training"] == 9.84375
    assert figures["final/karp_flatt"] == pytest.approx(4 / 17)


@pytest.mark.parametrize(("speedup", "verdict"), [(2.18, "passed"), (2.22, "failed")])
def test_a_measured_efficiency_above_what_is_possible_fails_the_gate(
    tmp_path: Path, speedup: float, verdict: str
) -> None:
    params = write_comparison(tmp_path)
    write_measurement(tmp_path, with_speedup(speedup))
    results = collect_results(outputs_of(tmp_path, params))
    gate = next(gate for gate in results.gates if gate.name == "Speedup is plausible")
    assert (gate.verdict, results.is_withheld) == (verdict, verdict == "failed")
    if verdict == "failed":
        assert gate.compared.startswith(
            "2proc was measured 2.22x as fast as 1proc, on 2 ranks against 1: a parallel efficiency of 1.11, above 1.1 "
            "is not possible."
        )
        assert results.cells[1].speedup is None


def test_a_part_that_may_be_noise_is_not_called_most_of_what_is_lost(measured_results: Results) -> None:
    parts = [part.model_copy(update={"seconds": estimate(part.seconds.value, 1.5)}) for part in waterfall().parts]
    changed = measurement(waterfalls=[waterfall(parts=parts)])
    text = markdown_of(measured_results.model_copy(update={"measurement": changed}))
    assert "exposed communication: 8.3 % of the step" not in text
