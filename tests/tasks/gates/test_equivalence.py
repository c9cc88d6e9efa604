"""The gate on the equivalence certificate, and what the report shows of it."""

from pathlib import Path
from typing import Any

import pytest

from tasks.records.gate import Gate
from tasks.reporting.collect import collect_results
from tasks.reporting.results import Results
from tests.tasks.reporting.comparison import edit_json, edit_segment, outputs_of, setting_of, write_certificate

NAME = "Update equivalence"


def results_of(folder: Path, params: dict[str, Any]) -> tuple[Results, Gate]:
    """Return what the report finds, and the gate."""
    results = collect_results(outputs_of(folder, params))
    (gate,) = [gate for gate in results.gates if gate.name == NAME]
    return results, gate


def test_a_passed_certificate_passes_with_its_numbers(tmp_path: Path, params: dict[str, Any]) -> None:
    _, gate = results_of(tmp_path, params)
    (found,) = gate.findings
    wanted = {
        "gradient_relative_l2": 5e-8, "gradient_noise_floor": 2e-7, "gradient_tolerance": 2e-6,
        "weights_relative_l2": 3e-7, "weights_noise_floor": 4e-7, "weights_tolerance": 4e-6,
    }  # fmt: skip
    assert (found.cell, found.code, found.numbers | wanted) == ("2proc", "passed", found.numbers)


def test_packed_rows_in_the_precision_of_the_training_are_said(tmp_path: Path, params: dict[str, Any]) -> None:
    difference = {"max_abs": 0.1, "relative_l2": 6e-3, "is_bitwise_equal": False, "largest_in": "lm_head.weight"}
    write_certificate(tmp_path, params, packed_kernels={"found": difference, "noise_floor": 5e-3, "tolerance": 1.5e-2})
    _, gate = results_of(tmp_path, params | {"train": params["train"] | {"precision": "bf16"}})
    assert all(figure in gate.compared for figure in ("fp32", "bf16", "6.0e-03", "5.0e-03", "1.5e-02"))


def test_a_failed_certificate_withholds_the_speedup(tmp_path: Path, params: dict[str, Any]) -> None:
    write_certificate(tmp_path, params, verdict="failed", problem="the gradient differs by 2.8e-02")
    results, gate = results_of(tmp_path, params)
    assert [(one.code, one.numbers["problem"]) for one in gate.findings] == [
        ("update_differs", "the gradient differs by 2.8e-02")
    ]
    assert results.cells[1].is_withheld
    assert results.cells[1].whole.speedup is None
    assert NAME in results.verdict


def test_figures_outrank_the_certificates_own_verdict(tmp_path: Path, params: dict[str, Any]) -> None:
    write_certificate(tmp_path, params, tolerance={"gradient": 1e-9, "weights": 1e-9})
    (found,) = results_of(tmp_path, params)[1].findings
    assert (found.verdict, found.code) == ("failed", "update_differs")
    assert (found.numbers["relative_l2"], found.numbers["tolerance"]) == (5e-8, 1e-9)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"verdict": "not checked", "problem": "too much noise"}, "not_certified"),
        ({"cell": "3proc"}, "batch_not_certified"),
        ({"weights": None}, "certificate_without_figures"),
        ({"settings": []}, "certificate_without_setting"),
    ],
)
def test_what_was_not_certified_is_no_pass(
    tmp_path: Path, params: dict[str, Any], changes: dict[str, Any], code: str
) -> None:
    write_certificate(tmp_path, params, **changes)
    _, gate = results_of(tmp_path, params)
    assert [(one.verdict, one.code) for one in gate.findings] == [("not checked", code)]


def test_a_certificate_of_other_code_is_none_of_this_run(tmp_path: Path, params: dict[str, Any]) -> None:
    edit_json(tmp_path / "measurements" / "certificate.json", numerics_version=7)
    (found,) = results_of(tmp_path, params)[1].findings
    told = (found.verdict, found.code, found.numbers["what"])
    assert told == ("not checked", "certificate_of_another", "numerics version")


def _changed(params: dict[str, Any], section: str, **changes: Any) -> dict[str, Any]:
    setting = setting_of(params)
    return setting | {section: setting[section] | changes}


DIFFERENCES: list[tuple[str, str, Any, Any]] = [
    *(
        ("train", name, value, its)
        for name, value, its in (
            ("learning_rate", 4e-3, 2e-3), ("weight_decay", 0.1, 0.0), ("max_grad_norm", 5.0, 1.0),
            ("adam_beta1", 0.5, 0.9), ("adam_beta2", 0.9, 0.999), ("momentum", 0.5, 0.9), ("optimizer", "sgd", "adamw"),
            ("schedule", "constant", "linear"), ("warmup_steps", 3, 0), ("seed", 1, 0), ("precision", "bf16", "fp32"),
            ("seq_len", 64, 128), ("global_batch_size", 8, 4), ("exact", True, False),
        )
    ),
    ("kernels", "deterministic", True, False),
    ("versions", "torch", "2.14.0", "2.15.0"),
    ("environment", "NCCL_ALGO", "Tree", None),
    ("options", "gradient_hook", "bf16", None),
]  # fmt: skip


@pytest.mark.parametrize(("section", "name", "value", "its"), DIFFERENCES, ids=lambda one: str(one)[:40])
def test_a_certificate_of_other_settings_than_the_trainings_fails_by_name_and_both_values(
    tmp_path: Path, params: dict[str, Any], section: str, name: str, value: Any, its: Any
) -> None:
    write_certificate(tmp_path, params, settings=[_changed(params, section, **{name: value})])
    results, gate = results_of(tmp_path, params)
    ((problem,),) = [one.problems for one in gate.findings]
    wanted = {"name": f"{section}.{name}", "found": value, "expected": its}
    assert (problem.code, problem.numbers | wanted) == ("other_value", problem.numbers)
    assert results.cells[1].is_withheld


def test_a_certificate_among_whose_ranks_one_differs_fails(tmp_path: Path, params: dict[str, Any]) -> None:
    write_certificate(tmp_path, params, settings=[_changed(params, "ranks_differ", **{"rank 1": {"train.seed": 7}})])
    assert [one.code for one in results_of(tmp_path, params)[1].findings] == ["ranks_differ"]


@pytest.mark.parametrize("changes", [{"strategy": "zero1"}, {"world_size": 3}, {"device": "cuda"}], ids=str)
def test_a_certificate_of_another_spread_fails(tmp_path: Path, params: dict[str, Any], changes: dict[str, Any]) -> None:
    write_certificate(tmp_path, params, **changes)
    (found,) = results_of(tmp_path, params)[1].findings
    assert found.code == "other_value"
    assert {found.numbers["name"]: found.numbers["found"]} == changes


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("train", {"log_every_steps": 7, "checkpoint_every_steps": 3, "micro_batch_size": 2, "loss_chunk_rows": 9}),
        ("priority", {"niceness": 5}),
        ("environment", {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "7", "CUDA_MODULE_LOADING": "LAZY"}),
        ("interpreter", {"watched_by": ["profile"]}),
    ],
)
def test_what_changes_no_update_may_differ(
    tmp_path: Path, params: dict[str, Any], section: str, changes: dict[str, Any]
) -> None:
    setting = setting_of(params)
    write_certificate(tmp_path, params, settings=[setting | {section: setting.get(section, {}) | changes}])
    assert results_of(tmp_path, params)[1].verdict == "passed"


def test_what_the_certificate_replaces_on_purpose_is_held_to_the_training_by_its_value(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    trained = _changed(params, "train", precision="bf16")
    trained["kernels"] = trained["kernels"] | {"attention_kernel": "flash"}
    for part in params["ranges"]:
        edit_segment(tmp_path, "2proc", part, settings=[trained])
    write_certificate(tmp_path, params, replaced={"train.precision": "bf16"})
    assert results_of(tmp_path, params)[1].verdict == "passed"
    write_certificate(tmp_path, params, replaced={"train.precision": "fp16"})
    for found in ("fp16", "fp32"):
        (one,) = results_of(tmp_path, params)[1].findings
        told = [problem.numbers for problem in one.problems if problem.numbers["name"] == "train.precision"]
        assert [(numbers["found"], numbers["expected"]) for numbers in told] == [(found, "bf16")]
        write_certificate(tmp_path, params)


def test_without_the_stage_measure_the_report_says_so(tmp_path: Path, params: dict[str, Any]) -> None:
    (tmp_path / "measurements" / "certificate.json").unlink()
    results, gate = results_of(tmp_path, params)
    assert gate.verdict == "not checked"
    assert results.equivalence == []
