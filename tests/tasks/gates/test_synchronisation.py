"""The gate `Gradients were synchronised`: all-reduces and bytes per step against DDP's buckets, worked out by hand.

In the comparison as written 2proc runs 2 micro-batches and 1 all-reduce of one bucket of 4,000 bytes per step, in
2 segments of 2 steps.
"""

from pathlib import Path
from typing import Any

import pytest

from tasks.gates.checks import check_gates
from tasks.gates.synchronisation import check_synchronisation
from tasks.records.gate import Gate
from tests.tasks.reporting.comparison import PARAMS, edit_json, edit_segment, edit_traffic, outputs_of, write_comparison


def gate_of(folder: Path, params: dict[str, Any]) -> Gate:
    return next(gate for gate in check_gates(outputs_of(folder, params)) if gate.name == "Gradients were synchronised")


def test_one_exchange_of_all_buckets_per_step_passes_and_says_so(tmp_path: Path, params: dict[str, Any]) -> None:
    gate = gate_of(tmp_path, params)
    assert gate.verdict == "passed"
    assert gate.compared == (
        "per optimizer step 2proc 1 all-reduces for 1 bucket of 0.00381 MiB; the gradient has 0.00381 MiB"
    )
    (found,) = gate.findings  # a cell of one rank exchanges nothing
    assert found.cell == "2proc"
    assert found.numbers == {
        "gradient_bytes": 4000,
        "buckets": 1,
        "bucket_bytes": 4000,
        "all_reduces_per_step": 1.0,
        "all_reduce_bytes_per_step": 4000.0,
    }


@pytest.mark.parametrize(
    ("cell", "changes", "says"),
    [
        ("2proc", {"number": 0}, "0 all-reduces where 2 are needed: gradients were never exchanged"),
        (
            "2proc",
            {"number": 1},
            "1 all-reduces where 2 are needed: gradients were not all exchanged in every",
        ),
        (
            "2proc",
            {"number": 4},
            "2 all-reduces per step where 1 exchange of the 1 bucket is needed: synchronised on every micro-batch",
        ),
        (
            "2proc",
            {"number": 4, "bucket_bytes": [2000, 2000], "num_bytes": 4000},
            "2,000 bytes were exchanged per step, the 2 buckets hold 4,000",
        ),
        (
            "2proc",
            {"number": 2, "bucket_bytes": [2000, 2000]},
            "2 all-reduces where 4 are needed: gradients were not all exchanged in every step",
        ),
        (
            "2proc",
            {"bucket_bytes": [3000], "num_bytes": 6000},
            "the buckets hold 3,000 bytes, the gradient of all parameters has 4,000",
        ),
        ("2proc", {"bucket_bytes": []}, "4,000 bytes were exchanged per step, the 0 buckets hold 0"),
        ("1proc", {"number": 2}, "one rank, yet 2 exchanges of gradients"),
        ("1proc", {"number": 2, "bucket_bytes": [4000]}, "one rank, yet 2 exchanges of gradients"),
    ],
)
def test_any_other_number_of_all_reduces_or_bytes_fails(
    tmp_path: Path, params: dict[str, Any], cell: str, changes: dict[str, Any], says: str
) -> None:
    edit_traffic(tmp_path, cell, **changes)
    gate = gate_of(tmp_path, params)
    assert gate.verdict == "failed"
    assert gate.compared.startswith(f"{cell} 0-8 epoch 1: {says}")


@pytest.mark.parametrize(
    ("accumulated", "num_all_reduces", "says"),
    [
        # The second step is the last one and may have had a single micro-batch: 4 + 1 at least.
        (4, 5, "2.5 all-reduces per step where 1 exchange of the 1 bucket is needed: synchronised on every micro"),
        (4, 8, "4 all-reduces per step where 1 exchange of the 1 bucket is needed: synchronised on every micro-batch"),
        (4, 4, "synchronised on more than the last of 4 micro-batches"),
        (1, 4, "synchronised more than once"),
    ],
)
def test_the_message_tells_on_which_micro_batches_the_ranks_synchronised(
    tmp_path: Path, params: dict[str, Any], accumulated: int, num_all_reduces: int, says: str
) -> None:
    edit_json(tmp_path / "runs" / "2proc" / "run.json", grad_accum_steps=accumulated)
    edit_traffic(tmp_path, "2proc", number=num_all_reduces)
    gate = gate_of(tmp_path, params)
    assert gate.verdict == "failed"
    assert says in gate.compared


def test_the_same_problem_in_every_segment_is_told_once(tmp_path: Path, params: dict[str, Any]) -> None:
    for part in ("0-8", "8-16"):
        edit_traffic(tmp_path, "2proc", part, number=4)
    assert gate_of(tmp_path, params).compared == (
        "2proc 0-8 epoch 1 and 1 other segment: 2 all-reduces per step where 1 exchange of the 1 bucket is needed: "
        "synchronised on every micro-batch"
    )


@pytest.fixture
def exact_params(tmp_path: Path) -> dict[str, Any]:
    """The same comparison in exact mode: 2 micro-batches, so 2 gathers of 4,000 bytes per step; files in tmp_path."""
    params = write_comparison(tmp_path, params=PARAMS | {"train": PARAMS["train"] | {"exact": True}})
    traffic = {"all_gather": {"number": 4, "num_bytes": 16000}}
    for part in ("0-8", "8-16"):
        edit_segment(tmp_path, "2proc", part, traffic=traffic, exchange={"num_parcels": 1})
    return params


def test_in_exact_mode_the_gathers_are_counted_and_the_gate_says_what_proves_the_sums(
    tmp_path: Path, exact_params: dict[str, Any]
) -> None:
    gate = gate_of(tmp_path, exact_params)
    assert gate.verdict == "passed"
    assert gate.compared.startswith(
        "per optimizer step 2proc 2 gathers of all ranks' gradients, added in one order; that all ranks then had the "
        "same sum is shown by the gates on parameters and loss curves"
    )
    assert gate.findings[0].numbers["all_gather_bytes_per_step"] == 8000.0


@pytest.mark.parametrize(
    ("changes", "verdict", "says"),
    [
        (
            {"num_bytes": 0},
            "failed",
            "0 gradients were gathered in 2 steps, one per micro-batch is needed: 3 to",
        ),
        ({"num_bytes": 14000}, "failed", "3.5 gradients were gathered in 2 steps"),
        ({"num_bytes": 20000}, "failed", "5 gradients were gathered in 2 steps"),
        ({"number": 3, "num_bytes": 12000}, "passed", "gathers"),  # the last step had one micro-batch per rank
        ({"kind": "all_reduce", "number": 2}, "failed", "exact mode, yet 2 all-reduces"),
    ],
)
def test_in_exact_mode_every_micro_batchs_gradient_is_gathered_whole(
    tmp_path: Path, exact_params: dict[str, Any], changes: dict[str, Any], verdict: str, says: str
) -> None:
    edit_traffic(tmp_path, "2proc", **{"kind": "all_gather", **changes})
    gate = gate_of(tmp_path, exact_params)
    assert gate.verdict == verdict
    assert says in gate.compared


def _with_options(folder: Path, *, num_all_reduces: int, num_bytes: int, **options: Any) -> Gate:
    """Return the gate on a comparison whose 2proc has these options and exchanged so much in each segment."""
    cells = {name: dict(cell) for name, cell in PARAMS["cells"].items()}
    cells["2proc"]["options"] = options
    params = write_comparison(folder, params=PARAMS | {"cells": cells})
    for part in ("0-8", "8-16"):
        edit_traffic(folder, "2proc", part, number=num_all_reduces, num_bytes=num_bytes)
    return gate_of(folder, params)


@pytest.mark.parametrize("hook", ["bf16", "fp16"])
def test_an_exchange_in_16_bit_sends_half_the_bytes_no_more_and_no_less(tmp_path: Path, hook: str) -> None:
    right = _with_options(tmp_path / "right", num_all_reduces=2, num_bytes=4000, gradient_hook=hook)
    assert right.verdict == "passed"
    for num_bytes in (2000, 8000):
        wrong = _with_options(tmp_path / str(num_bytes), num_all_reduces=2, num_bytes=num_bytes, gradient_hook=hook)
        assert wrong.verdict == "failed"
        assert (
            f"{num_bytes // 2:,} bytes were exchanged per step, the 1 bucket hold 4,000, in {hook} 2,000"
            in wrong.compared
        )


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        ({"number": 1}, "torch recorded 1 exchanges in the last 2 steps, 2 were counted"),
        ({"num_bytes": 4000}, "were given 4,000 bytes by torch's record, 8,000 are needed"),
        ({}, None),
    ],
)
def test_what_torch_recorded_of_the_last_steps_decides_over_what_was_reckoned(
    tmp_path: Path, params: dict[str, Any], recorded: dict[str, int], says: str | None
) -> None:
    told = {"num_steps": 2, "number": 2, "num_bytes": 8000, "counted_number": 2, "counted_bytes": 8000} | recorded
    edit_segment(tmp_path, "2proc", recorded_exchanges=told)
    found = check_synchronisation(outputs_of(tmp_path, params), "2proc")
    assert found is not None
    assert found.verdict == ("failed" if says else "passed")
    assert (says or "") in found.compared
