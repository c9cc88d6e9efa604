"""The gate on the equivalence certificate, and what the report shows of it."""

from pathlib import Path
from typing import Any

import pytest

from tasks.records.gate import Gate
from tasks.reporting.collect import collect_results
from tasks.reporting.results import Results
from tests.tasks.reporting.comparison import edit_json, edit_segment, outputs_of, setting_of, write_certificate
from tests.tasks.reporting.rendered import html_of, markdown_of

NAME = "Update equivalence"


def results_of(folder: Path, params: dict[str, Any]) -> tuple[Results, Gate]:
    """Return what the report finds, and the gate."""
    results = collect_results(outputs_of(folder, params))
    (gate,) = [gate for gate in results.gates if gate.name == NAME]
    return results, gate


def test_a_passed_certificate_passes_with_its_numbers(tmp_path: Path, params: dict[str, Any]) -> None:
    results, gate = results_of(tmp_path, params)
    assert gate.verdict == "passed"
    assert "gradient of 8 updates at most 5.0e-08 apart (noise floor 2.0e-07, 2.0e-06 allowed)" in gate.compared
    assert (
        "weights as each update changed them at most 3.0e-07 apart (noise floor 4.0e-07, 4.0e-06 allowed)"
        in gate.compared
    )
    (found,) = gate.findings
    assert (found.cell, found.numbers["gradient_relative_l2"]) == ("2proc", 5e-8)
    assert found.numbers["weights_tolerance"] == 4e-6
    assert results.cells[1].whole.speedup is not None


def test_another_precision_than_the_trainings_is_said(tmp_path: Path, params: dict[str, Any]) -> None:
    _, gate = results_of(tmp_path, params)
    assert "2proc against one process: gradient" in gate.compared
    _, gate = results_of(tmp_path, params | {"train": params["train"] | {"precision": "bf16"}})
    assert "against one process, both in fp32 (in bf16 their kernels round differently): gradient" in gate.compared


def test_packed_rows_in_the_precision_of_the_training_are_said(tmp_path: Path, params: dict[str, Any]) -> None:
    difference = {"max_abs": 0.1, "relative_l2": 6e-3, "is_bitwise_equal": False, "largest_in": "lm_head.weight"}
    write_certificate(tmp_path, params, packed_kernels={"found": difference, "noise_floor": 5e-3, "tolerance": 1.5e-2})
    _, gate = results_of(tmp_path, params | {"train": params["train"] | {"precision": "bf16"}})
    assert (
        "packed rows in bf16 6.0e-03 from the same rows unpacked, where bf16 alone makes 5.0e-03 (1.5e-02 allowed)"
        in gate.compared
    )


def test_bitwise_equal_is_said(tmp_path: Path, params: dict[str, Any]) -> None:
    equal = {"max_abs": 0.0, "relative_l2": 0.0, "is_bitwise_equal": True, "largest_in": None}
    write_certificate(tmp_path, params, gradient=equal, weights=equal)
    _, gate = results_of(tmp_path, params)
    assert "gradient of 8 updates bitwise equal" in gate.compared


def test_a_failed_certificate_withholds_the_speedup(tmp_path: Path, params: dict[str, Any]) -> None:
    write_certificate(tmp_path, params, verdict="failed", problem="the gradient differs by 2.8e-02")
    results, gate = results_of(tmp_path, params)
    assert gate.verdict == "failed"
    assert "2proc: the gradient differs by 2.8e-02" in gate.compared
    assert results.cells[1].is_withheld
    assert results.cells[1].whole.speedup is None
    assert NAME in results.verdict


def test_figures_outrank_the_certificates_own_verdict(tmp_path: Path, params: dict[str, Any]) -> None:
    write_certificate(tmp_path, params, tolerance={"gradient": 1e-9, "weights": 1e-9})
    _, gate = results_of(tmp_path, params)
    assert gate.verdict == "failed"
    assert "2proc: the gradient 5.0e-08 apart, 1.0e-09 allowed" in gate.compared


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "not checked", "problem": "too much noise"}, "2proc: too much noise"),
        ({"cell": "3proc"}, "2proc has no certificate of updates of 4 samples"),
        ({"weights": None}, "2proc has a certificate without figures"),
    ],
)
def test_what_was_not_certified_is_no_pass(
    tmp_path: Path, params: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    write_certificate(tmp_path, params, **changes)
    _, gate = results_of(tmp_path, params)
    assert (gate.verdict, words in gate.compared) == ("not checked", True)


def test_a_certificate_of_other_code_is_none_of_this_run(tmp_path: Path, params: dict[str, Any]) -> None:
    edit_json(tmp_path / "measurements" / "certificate.json", numerics_version=7)
    _, gate = results_of(tmp_path, params)
    assert gate.verdict == "not checked"
    assert "2proc was trained with another numerics version than the one that the certificate is of" in gate.compared


def _changed(params: dict[str, Any], section: str, **changes: Any) -> dict[str, Any]:
    setting = setting_of(params)
    return setting | {section: setting[section] | changes}


DIFFERENCES: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("train", {name: value}, f"the ranks used train.{name} {value}, the training {its}")
        for name, value, its in (
            ("learning_rate", 4e-3, 2e-3), ("weight_decay", 0.1, 0.0), ("max_grad_norm", 5.0, 1.0),
            ("adam_beta1", 0.5, 0.9), ("adam_beta2", 0.9, 0.999), ("momentum", 0.5, 0.9), ("optimizer", "sgd", "adamw"),
            ("schedule", "constant", "linear"), ("warmup_steps", 3, 0), ("seed", 1, 0), ("precision", "bf16", "fp32"),
            ("seq_len", 64, 128), ("global_batch_size", 8, 4), ("exact", True, False),
        )
    ),
    ("kernels", {"deterministic": True}, "the ranks used kernels.deterministic True, the training False"),
    ("versions", {"torch": "2.14.0"}, "the ranks used versions.torch 2.14.0, the training 2.15.0"),
    ("environment", {"NCCL_ALGO": "Tree"}, "the ranks used environment.NCCL_ALGO Tree, the training None"),
    ("options", {"gradient_hook": "bf16"}, "the ranks used options.gradient_hook bf16, the training None"),
    ("ranks_differ", {"rank 1": {"train.seed": 7}}, "rank 1 has {'train.seed': 7}"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "changes", "words"), DIFFERENCES, ids=lambda one: str(one)[:40])
def test_a_certificate_of_other_settings_than_the_trainings_fails_by_name_and_both_values(
    tmp_path: Path, params: dict[str, Any], section: str, changes: dict[str, Any], words: str
) -> None:
    write_certificate(tmp_path, params, settings=[_changed(params, section, **changes)])
    results, gate = results_of(tmp_path, params)
    said = f"2proc, certificate of updates of 4 samples: {words}. Measure again: make rebench"
    assert (gate.verdict, gate.compared) == ("failed", said)
    assert results.cells[1].is_withheld


@pytest.mark.parametrize("changes", [{"strategy": "zero1"}, {"world_size": 3}, {"device": "cuda"}], ids=str)
def test_a_certificate_of_another_spread_fails(tmp_path: Path, params: dict[str, Any], changes: dict[str, Any]) -> None:
    write_certificate(tmp_path, params, **changes)
    _, gate = results_of(tmp_path, params)
    ((name, value),) = changes.items()
    assert gate.verdict == "failed"
    assert f"the ranks had {name} {value}, the training {'ddp' if name == 'strategy' else ''}" in gate.compared


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
    _, gate = results_of(tmp_path, params)
    assert "the ranks used train.precision fp16, the training bf16" in gate.compared
    write_certificate(tmp_path, params)
    _, gate = results_of(tmp_path, params)
    assert "the ranks used train.precision fp32, the training bf16" in gate.compared


def test_a_certificate_that_does_not_say_what_it_is_of_is_no_pass(tmp_path: Path, params: dict[str, Any]) -> None:
    write_certificate(tmp_path, params, settings=[])
    _, gate = results_of(tmp_path, params)
    assert gate.verdict == "not checked"
    assert gate.compared == "2proc has a certificate that does not say what its updates were made with"


def test_without_the_stage_measure_the_report_says_so(tmp_path: Path, params: dict[str, Any]) -> None:
    (tmp_path / "measurements" / "certificate.json").unlink()
    results, gate = results_of(tmp_path, params)
    assert gate.verdict == "not checked"
    assert results.equivalence == []
    text = markdown_of(results)
    assert "Noise floor" not in text.partition("## Glossary")[0]
    assert "were not compared with those of a step on one" in text


def test_page_and_markdown_show_differences_beside_floor_and_tolerance(tmp_path: Path, params: dict[str, Any]) -> None:
    results, _ = results_of(tmp_path, params)
    text = markdown_of(results)
    assert (
        "| 2proc | gradient of 8 updates of 4 samples, the widest | 5.0e-08 | 1.0e-06 | no | 2.0e-07 | 2.0e-06 |"
        in text
    )
    assert (
        "| 2proc | weights of 8 updates of 4 samples, the widest | 3.0e-07 | 1.0e-06 | no | 4.0e-07 | 4.0e-06 |" in text
    )
    assert "made 8 updates on the first rows" in text
    page = html_of(results)
    assert "Updates of the ranks against those of one process" in page
    assert "4.0e-07" in page
