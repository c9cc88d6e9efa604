"""The gate `Gradients were synchronised`: all-reduces and bytes per step against DDP's buckets, worked out by hand.

In the comparison as written 2proc runs 2 micro-batches and 1 all-reduce of one bucket of 4,000 bytes per step, in
2 segments of 2 steps.
"""

import pytest

from tasks.gates.synchronisation import check_synchronisation
from tests.tasks.gates.conftest import require
from tests.tasks.reporting.comparison import PARAMS, edit_json, edit_segment, edit_traffic, outputs_of, write_comparison


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"number": 4, "bucket_bytes": [2000, 2000], "num_bytes": 4000}, "other_bytes"),
        ({"number": 2, "bucket_bytes": [2000, 2000]}, "too_few_exchanges"),
        ({"bucket_bytes": [3000], "num_bytes": 6000}, "other_size"),
    ],
)
def test_any_other_number_of_all_reduces_or_bytes_fails(tmp_path, expect, changes, code):
    edit_traffic(tmp_path, "2proc", **changes)
    expect(check_synchronisation, code, where="2proc 0-8 epoch 1")


@pytest.mark.parametrize(
    ("accumulated", "num_all_reduces", "code"),
    [
        # The second step is the last one and may have had a single micro-batch: 4 + 1 at least.
        (4, 5, "exchanged_on_every_micro_batch"),
        (4, 4, "too_many_exchanges"),
        (1, 4, "too_many_exchanges"),
    ],
)
def test_the_code_tells_whether_the_ranks_synchronised_on_every_micro_batch_once_for_all_segments(
    tmp_path, params, expect, accumulated, num_all_reduces, code
):
    edit_json(tmp_path / "runs" / "2proc" / "run.json", grad_accum_steps=accumulated)
    for part in params["ranges"]:
        edit_traffic(tmp_path, "2proc", part, number=num_all_reduces)
    known = {"per_step": num_all_reduces / 2, "micro_batches": accumulated, "other_segments": 1}
    assert len(expect(check_synchronisation, code, where="2proc 0-8 epoch 1", **known).problems) == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_bytes": 0}, "other_bytes"),
        # Neither 3 gradients nor 4.
        ({"num_bytes": 14000}, "other_bytes"),
        ({"num_bytes": 20000}, "other_bytes"),
        ({"number": 3, "num_bytes": 12000}, "passed"),  # the last step had one micro-batch per rank
        ({"kind": "all_reduce", "number": 2}, "foreign_collectives"),
    ],
)
def test_in_exact_mode_every_micro_batchs_gradient_is_gathered_whole(tmp_path, changes, code):
    """2 micro-batches, so 2 gathers of 4,000 bytes per step."""
    params = write_comparison(tmp_path, params=PARAMS | {"train": PARAMS["train"] | {"exact": True}})
    traffic = {"all_gather": {"number": 4, "num_bytes": 16000}}
    for part in params["ranges"]:
        edit_segment(tmp_path, "2proc", part, traffic=traffic, exchange={"num_parcels": 1})
    edit_traffic(tmp_path, "2proc", **{"kind": "all_gather", **changes})
    require(check_synchronisation(outputs_of(tmp_path, params), "2proc"), code)


@pytest.mark.parametrize("hook", ["bf16", "fp16"])
def test_an_exchange_in_16_bit_sends_half_the_bytes_no_more_and_no_less(tmp_path, hook):
    two = PARAMS["cells"]["2proc"] | {"options": {"gradient_hook": hook}}
    params = write_comparison(tmp_path, params=PARAMS | {"cells": PARAMS["cells"] | {"2proc": two}})
    edit_traffic(tmp_path, "2proc", "8-16", num_bytes=4000)
    for num_bytes, code in ((4000, "passed"), (2000, "other_bytes"), (8000, "other_bytes")):
        edit_traffic(tmp_path, "2proc", num_bytes=num_bytes)
        require(check_synchronisation(outputs_of(tmp_path, params), "2proc"), code)


@pytest.mark.parametrize(
    ("recorded", "code"),
    [({"number": 1}, "not_all_counted"), ({"num_bytes": 4000}, "other_bytes_recorded"), ({}, "passed")],
)
def test_what_torch_recorded_of_the_last_steps_decides_over_what_was_reckoned(tmp_path, expect, recorded, code):
    told = {"num_steps": 2, "number": 2, "num_bytes": 8000, "counted_number": 2, "counted_bytes": 8000} | recorded
    edit_segment(tmp_path, "2proc", recorded_exchanges=told)
    found = expect(check_synchronisation, code)
    assert code == "passed" or found.numbers["recorded"] == next(iter(recorded.values()))
