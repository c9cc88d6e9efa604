"""What an emulated device is told, and the truth that follows from it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import workload
from tests.emulator.device import EmulatedDevice, expected_step_seconds, read_device, write_device
from training.process.files import digest_file

_DEVICE = EmulatedDevice(num_layers=8, forward_ms=1.0, backward_ms=2.0, gradient_mib_per_layer=10.0)
"""24 ms per micro-batch; DDP's buckets hold 3, 3 and 2 of its layers."""


def _changed(tmp_path: Path, **changes: Any) -> Path:
    folder = write_device(tmp_path / "device", _DEVICE)
    raw = json.loads((folder / "config.json").read_bytes())
    kept = {key: value for key, value in {**raw, **changes}.items() if value != "left out"}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


# ------------------------------------------------------------------ the description


def test_a_device_is_read_back_as_it_was_written_with_a_manifest_that_fits(tmp_path: Path) -> None:
    device = dataclasses.replace(_DEVICE, link_gib_per_second=4.0, contention=0.2, shared_folder=str(tmp_path), seed=7)
    folder = write_device(tmp_path / "device", device)
    assert read_device(folder) == device
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["files"] == {"config.json": digest_file(folder / "config.json")}
    model = workload.load_model(folder)
    assert manifest["num_parameters"] == sum(part.numel() for part in model.parameters()) == 8 * 2048


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"forward_msec": 1.0}, "unknown keys ['forward_msec']"),
        ({"forward_ms": "left out"}, "missing keys ['forward_ms']"),
        ({"model_type": "qwen2"}, "'qwen2'"),
        ({"num_layers": 2.5}, "num_layers is 2.5; allowed: int"),
        ({"num_layers": True}, "num_layers is True; allowed: int"),
        ({"num_layers": 0}, "num_layers=0; allowed: at least 1"),
        ({"backward_ms": -1}, "backward_ms=-1.0; allowed: a number from 0"),
        ({"data_ms": float("nan")}, "data_ms=nan; allowed"),
        ({"copy_ms": None}, "copy_ms is None; allowed: float"),
        ({"link_gib_per_second": 0}, "link_gib_per_second=0.0; allowed: more than 0, or null"),
        ({"link_gib_per_second": "fast"}, "allowed: float or null"),
        ({"gradient_mib_per_layer": 0}, "gradient_mib_per_layer=0.0; allowed: more than 0"),
        ({"contention": 0.1}, "contention=0.1 without shared_folder"),
        ({"seed": -1}, "seed=-1; allowed: from 0"),
    ],
)
def test_a_device_that_is_not_one_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_device(_changed(tmp_path, **changes))
    assert named in str(refused.value)
    assert "config.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_without_a_device_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config.json: .*needed: the JSON file of an emulated device"):
        read_device(tmp_path)


# ------------------------------------------------------------------ the truth, by hand


def test_a_bucket_costs_latency_and_its_bytes_around_a_ring() -> None:
    device = dataclasses.replace(_DEVICE, link_latency_ms=0.5, link_gib_per_second=2.0)
    quarter_of_a_gib = 2**28
    assert device.compute_link_seconds(quarter_of_a_gib, 1) == 0
    assert device.compute_link_seconds(quarter_of_a_gib, 2) == pytest.approx(0.0005 + 0.125)
    assert device.compute_link_seconds(quarter_of_a_gib, 4) == pytest.approx(0.0005 + 1.5 * 0.125)
    assert dataclasses.replace(device, link_gib_per_second=None).compute_link_seconds(quarter_of_a_gib, 4) == 0.0005


def test_the_true_step_is_the_sum_of_its_parts() -> None:
    assert expected_step_seconds(_DEVICE, 1, 4) == pytest.approx(0.096)
    assert expected_step_seconds(_DEVICE, 2, 2) == pytest.approx(0.048)
    once = {"optimizer_ms": 3.0, "fixed_ms": 5.0}
    assert expected_step_seconds(dataclasses.replace(_DEVICE, **once), 2, 2) == pytest.approx(0.056)
    assert expected_step_seconds(dataclasses.replace(_DEVICE, copy_ms=2.0), 2, 2) == pytest.approx(0.052)
    slow = dataclasses.replace(_DEVICE, straggler_ms=4.0)
    assert [expected_step_seconds(slow, size, 2) for size in (1, 2)] == pytest.approx([0.048, 0.052])
    crowded = dataclasses.replace(_DEVICE, contention=0.1, shared_folder="shared")
    assert [expected_step_seconds(crowded, size, 2) for size in (1, 2, 4)] == pytest.approx([0.048, 0.0528, 0.0624])
    assert expected_step_seconds(dataclasses.replace(_DEVICE, data_ms=20.0), 2, 2) == pytest.approx(0.048)
    assert expected_step_seconds(dataclasses.replace(_DEVICE, data_ms=30.0), 2, 2) == pytest.approx(0.060)
    wrapped = dataclasses.replace(_DEVICE, wrapper_ms=2.0)
    assert [expected_step_seconds(wrapped, size, 1) for size in (1, 2)] == pytest.approx([0.024, 0.030])
    assert expected_step_seconds(wrapped, 1, 1, is_wrapped=True) == pytest.approx(0.030)
    with pytest.raises(ValueError, match=r"jitter=0.1; allowed: 0"):
        expected_step_seconds(dataclasses.replace(_DEVICE, jitter=0.1), 2, 1)


def test_only_what_the_backward_does_not_hide_of_the_link_lengthens_the_true_step() -> None:
    # 30, 30 and 20 MiB are ready 6, 12 and 16 ms after the backward began, and take 3.5, 3.5 and 2.5 ms.
    fast = dataclasses.replace(_DEVICE, link_latency_ms=0.5, link_gib_per_second=10 / 1.024)
    assert expected_step_seconds(fast, 2, 1) == pytest.approx(0.024 + 0.0025)
    # 10 times slower without latency, 30, 30 and 20 ms: the link never rests.
    slow = dataclasses.replace(_DEVICE, link_gib_per_second=1 / 1.024)
    assert expected_step_seconds(slow, 2, 1) == pytest.approx(0.008 + 0.006 + 0.080)
    assert expected_step_seconds(slow, 2, 1, communicates=False) == pytest.approx(0.024)
    assert expected_step_seconds(slow, 2, 1, layers_per_bucket=[8]) == pytest.approx(0.024 + 0.080)
