"""The probe on real ranks: a real small model, real all-reduces on gloo, and an emulated device with known parts."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.measuring.paired import PairedParts
from tasks.measuring.prediction import predict
from tasks.measuring.probe import make_buckets, make_probe
from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, expected_step_seconds, write_device
from tests.tiny import make_config, make_slice
from tests.training.forked_ranks import ForkedRanks, last_words
from tests.training.probing.probes import KINDS, NUM_REPEATS, SIZES
from tests.undisturbed import hold_undisturbed
from training.probing.parts import probe_buckets, probe_compute
from training.probing.sweep import sweep_exchange
from training.process.distributed import Ranks

_BUCKET_MIB = 0.1
EVEN_HALF = PairedParts(
    contention=(1.0,), straggler_seconds=(0.0,), wrapper_seconds=(0.0,), beyond_share_seconds=(0.0,), share=0.5
)
"""Two ranks that cost each other nothing."""


def _probed(ranks: ForkedRanks, work: Path, model: Path, rows: Path, **changes: Any) -> Any:
    config = make_config(work, model, [rows], **changes)
    codes = ranks.launch(config, entry="tests.training.probing.probes")
    assert codes == [0] * config["world_size"], last_words(config)
    return json.loads((work / "probe.json").read_bytes())


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_slice(tmp_path_factory.mktemp("probed") / "0-32", num_rows=32, min_len=20)


@pytest.fixture(scope="module")
def one(ranks: ForkedRanks, tiny_model: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One rank of a small model, alone."""
    root = tmp_path_factory.mktemp("one")
    return _probed(ranks, root / "work", tiny_model, rows)


@pytest.fixture(scope="module")
def two(ranks: ForkedRanks, tiny_model: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two ranks of it, with buckets so small that there are several."""
    root = tmp_path_factory.mktemp("two")
    return _probed(
        ranks, root / "work", tiny_model, rows,
        strategy="ddp", world_size=2, options={"bucket_mib": _BUCKET_MIB},
    )  # fmt: skip


def test_probing_changes_no_weight_and_leaves_a_strategy_that_still_trains(one: Any, two: Any) -> None:
    assert one["checksum_stays"]
    assert two["checksum_stays"]
    assert len(set(two["checksums"])) == 1
    assert two["traffic"]["all_reduce"] == [len(two["bucket_bytes"]), sum(two["bucket_bytes"])]


def test_every_part_is_timed_in_every_repeat(one: Any) -> None:
    compute = one["compute"]
    for part in ("forward_seconds", "backward_seconds"):
        seconds = np.array(compute[part])
        assert seconds.shape == (NUM_REPEATS, 4)
        assert (seconds > 0).all()
    assert np.array(compute["optimizer_seconds"]).shape == np.array(compute["fixed_seconds"]).shape == (NUM_REPEATS,)


def test_parts_are_timed_on_one_rank_only() -> None:
    several: Any = SimpleNamespace(world_size=2)
    nothing: Any = None
    with pytest.raises(ValueError, match="world_size=2; allowed: 1"):
        probe_compute(nothing, several, [], num_repeats=1)


def test_gradients_are_ready_one_after_another_and_the_tied_embedding_last(one: Any) -> None:
    gradients = one["compute"]["gradients"]
    shares = [part["ready"] for part in gradients]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1
    assert gradients[-1]["name"] == "model.embed_tokens.weight"
    assert gradients[0]["name"].startswith("model.norm")
    # 2 layers of 12 tensors, the last norm, the tied embedding.
    assert len({part["name"] for part in gradients}) == 26


def test_buckets_hold_every_parameter_once_in_the_order_and_sizes_of_ddp(one: Any, two: Any) -> None:
    gradients = one["compute"]["gradients"]
    buckets = probe_buckets(two["bucket_bytes"], gradients)
    assert len(buckets) > 2
    assert [bucket["num_bytes"] for bucket in buckets] == two["bucket_bytes"]
    held = [name for bucket in buckets for name in bucket["parameters"]]
    assert held == [part["name"] for part in gradients]
    ready = {part["name"]: part["ready"] for part in gradients}
    assert [bucket["ready"] for bucket in buckets] == [ready[bucket["parameters"][-1]] for bucket in buckets]


def test_the_lever_bucket_size_fills_buckets_as_ddp_really_does(one: Any, two: Any) -> None:
    probe = make_probe(
        one["compute"], {"all_reduce": {2: two["sweep"]}}, in_flight=two["in_flight"], paired={2: EVEN_HALF},
        strategy="ddp", buckets=probe_buckets(two["bucket_bytes"], one["compute"]["gradients"]),
    )  # fmt: skip
    made = make_buckets(probe.gradients, int(_BUCKET_MIB * 2**20))
    assert [bucket.num_bytes for bucket in made] == two["bucket_bytes"]
    assert probe.rebuild_buckets(int(_BUCKET_MIB * 2**20)).buckets == made
    # And what was measured is enough for a prediction.
    found = predict(probe, [2], num_draws=100, seed=1)[2]
    assert 0 < found.low <= found.value <= found.high


def test_buckets_that_do_not_fit_the_order_of_the_gradients_are_refused(one: Any, two: Any) -> None:
    gradients = one["compute"]["gradients"]
    with pytest.raises(ValueError, match="bucket 0 of"):
        probe_buckets([two["bucket_bytes"][0] + 4], gradients)
    with pytest.raises(ValueError, match=f"not all of {len(gradients)} parameters"):
        probe_buckets(two["bucket_bytes"][:-1], gradients)


def test_a_sweep_times_every_size_that_fits(two: Any) -> None:
    sweep = two["sweep"]
    assert [point["num_bytes"] for point in sweep["points"]] == list(SIZES)
    assert sweep["stopped_because"] is None
    for point in sweep["points"]:
        assert 3 <= len(point["seconds"]) <= NUM_REPEATS
        assert point["median_seconds"] == pytest.approx(float(np.median(point["seconds"])))
        assert min(point["seconds"]) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_exchange_is_swept_on_real_ranks(two: Any, kind: str) -> None:
    sweep = two["kinds"][kind]
    assert (sweep["kind"], sweep["stopped_because"]) == (kind, None)
    assert [point["num_bytes"] for point in sweep["points"]] == list(SIZES)
    assert all(min(point["seconds"]) > 0 for point in sweep["points"])


def test_a_sweep_says_what_it_left_out(two: Any) -> None:
    short = two["short_sweep"]
    assert [point["num_bytes"] for point in short["points"]] == [2**16]
    assert short["stopped_because"].startswith("from 1024 MiB on left out: ")


def test_a_sweep_of_a_link_whose_seconds_are_known_sleeps_for_them(two: Any) -> None:
    slept = two["slept"]["points"]
    assert [point["num_bytes"] for point in slept] == [2**20, 2**21]
    assert min(slept[0]["seconds"]) >= 10e-3
    assert min(slept[1]["seconds"]) >= 20e-3


def test_one_rank_has_nothing_to_all_reduce(alone: Ranks) -> None:
    with pytest.raises(ValueError, match="at least 2 ranks"):
        sweep_exchange(alone, num_repeats=1, seconds_budget=1.0)


def test_all_reduces_in_flight_outlast_the_backward_beside_them(two: Any) -> None:
    in_flight = two["in_flight"]
    for name in ("alone_seconds", "in_flight_seconds"):
        assert np.array(in_flight[name]).shape == (2, NUM_REPEATS)
    assert 0 < in_flight["num_outlasted"] <= 2 * NUM_REPEATS


@pytest.mark.slow
@pytest.mark.alone
def test_the_parts_of_an_emulated_device_are_found_and_foretell_its_step(
    ranks: ForkedRanks, rows: Path, tmp_path: Path
) -> None:
    device = EmulatedDevice(
        num_layers=4, forward_ms=4.0, backward_ms=8.0, gradient_mib_per_layer=32.0, link_latency_ms=1.0,
        link_gib_per_second=2.0, optimizer_ms=6.0, fixed_ms=5.0,
    )  # fmt: skip
    model = write_device(tmp_path / "device", device)
    changes = {"workload": WORKLOAD, "strategy": "ddp", "micro_batch_size": 4}

    def check(number: int) -> None:
        folder = tmp_path / str(number)
        alone = _probed(ranks, folder / "one", model, rows, **changes, world_size=1)
        together = _probed(ranks, folder / "two", model, rows, **changes, world_size=2)
        sweep = {
            "points": [
                {"num_bytes": mib * 2**20, "seconds": [device.compute_link_seconds(mib * 2**20, 2)]}
                for mib in (1, 4, 16, 32, 64)
            ]
        }
        # Half of the fixed seconds and of the update are the share of a rank that has all of both.
        whole = dataclasses.replace(EVEN_HALF, beyond_share_seconds=((6e-3 + 5e-3) / 2,))
        probe = make_probe(
            alone["compute"], {"all_reduce": {2: sweep}}, paired={2: whole},
            link_bytes_per_byte=device.bytes_per_real_byte,
            strategy="ddp", buckets=probe_buckets(together["bucket_bytes"], alone["compute"]["gradients"]),
        )  # fmt: skip
        assert np.median(probe.forward_seconds) == pytest.approx(16e-3, rel=0.1)
        assert np.median(probe.backward_seconds) == pytest.approx(32e-3, rel=0.1)
        assert np.median(probe.optimizer_seconds) == pytest.approx(6e-3, rel=0.3)
        assert np.median(probe.fixed_seconds[1]) == pytest.approx(5e-3, abs=3e-3)
        assert [bucket.num_bytes for bucket in probe.buckets] == [32 * 2**20] * 4
        assert [bucket.ready for bucket in probe.buckets] == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=0.05)
        truth = expected_step_seconds(device, 1, 2) / expected_step_seconds(device, 2, 1)
        assert predict(probe, [2], seed=1)[2].value == pytest.approx(truth, rel=0.1)

    hold_undisturbed(check)
