"""The benchmark of throughput: its arithmetic by hand, the blocks that all peers share, and small real runs."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.throughput import gpu, targets, trying
from benchmarks.throughput.contest import LOSS_TOLERANCE, Found, against_ours, contest, largest_difference
from benchmarks.throughput.groups import Blocks, Group, Setup, groups, write_job
from benchmarks.throughput.job import Job, padded
from benchmarks.throughput.peers.feeding import loaded_model
from benchmarks.throughput.rows import small_qwen2, write_random_model, write_rows
from benchmarks.throughput.sizes import SIZES
from benchmarks.throughput.spreading import beyond_import, spread
from benchmarks.throughput.trying import (
    best_of,
    far_behind,
    settings_of,
    to_compile,
    tried_settings,
    use_what_fits,
    worth_trying,
)
from benchmarks.throughput.waiting import Waited, waited_for_data
from tasks.process.failure import ResourceError
from tests.bare_python import make_bare_python
from tests.tiny import make_tiny_workload
from tests.warm.environment import warm_environment
from tests.warm.imports import OF_FIVE_PACKAGES
from training.workloads import find_workload

_PEERS = ("ours", "published", "trainer", "accelerated")
_SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1} | {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_NUM_ROWS, _SEQ_LEN = 64, 24
_SLOW_LOADER = """
import time
from training.data import plan

prompt = plan.make_micro_batches

def slow(*arguments, **more):
    time.sleep(0.5)
    return prompt(*arguments, **more)

plan.make_micro_batches = slow
"""


@pytest.fixture(scope="module")
def rows() -> list[np.ndarray]:
    """Rows of 2 to 30 tokens, some of them longer than the sequence length."""
    random = np.random.default_rng(3)
    return [random.integers(0, 128, size=length) for length in random.integers(2, 31, size=_NUM_ROWS)]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory, rows: list[np.ndarray]) -> Setup:
    """Two timed steps of 8 rows per block, on a model of one layer."""
    folder = tmp_path_factory.mktemp("throughput")
    return Setup(
        name="tiny", model_dir=write_random_model(folder / "model", small_qwen2(128, **_SHAPE)),
        slice_dir=write_rows(folder / "rows", rows), num_rows=_NUM_ROWS, world_size=1, global_batch_size=8,
        seq_len=_SEQ_LEN, steps_per_block=2,
    )  # fmt: skip


def _job(setup: Setup, folder: Path) -> Job:
    return write_job(setup, "ours", folder)


def test_every_peer_is_given_the_same_rows_in_a_block_however_it_orders_them(setup: Setup, tmp_path: Path) -> None:
    job = _job(setup, tmp_path)
    assert (job.num_blocks, job.steps_of(1), job.steps_of(2)) == (2, [4, 5, 6], [1, 2, 3])
    plain, grouped = job.sequence(by_length=False), job.sequence(by_length=True)
    assert plain != grouped
    assert plain[:8] == grouped[:8]  # the step that is not timed
    assert sorted(plain[8:24]) == sorted(grouped[8:24])
    lengths = [len(job.tokens(row)) for row in grouped[8:24]]
    assert lengths == sorted(lengths, reverse=True)
    ours = np.concatenate([job.rows_of(step) for step in job.steps_of(0)])
    assert plain[:24] == ours.tolist()


def test_tokens_of_a_block_are_counted_without_padding_and_after_cutting(
    setup: Setup, rows: list[np.ndarray], tmp_path: Path
) -> None:
    job = _job(setup, tmp_path)
    timed = [int(row) for step in job.steps_of(1)[1:] for row in job.rows_of(step)]
    assert job.num_units(1) == sum(min(len(rows[row]), _SEQ_LEN) for row in timed)
    assert job.num_targets(1) == job.num_units(1) - len(timed)
    assert max(len(row) for row in rows) > _SEQ_LEN


def test_a_padded_micro_batch_masks_its_padding_in_labels_and_attention() -> None:
    found = padded([np.array([5, 6, 7]), np.array([8])], length=3, multiple_of=4)
    assert found["input_ids"].tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert found["labels"].tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def _found(setup: Setup, *, ours: list[float], theirs: list[float], losses: list[float] | None = None) -> Found:
    """Return a contest against the published loop with these seconds per block, 1,000 tokens in each."""
    tokens, expected = [1_000] * len(ours), [2.0] * len(ours)
    blocks = {
        "ours": Blocks(ours, expected, tokens, ours, peak_memory_bytes=300 * 2**20),
        "published": Blocks(theirs, losses or expected, tokens, theirs, peak_memory_bytes=400 * 2**20),
    }
    return Found(
        setup=setup, settings={name: {} for name in blocks}, too_large={}, tried={}, blocks=blocks,
        ratios=against_ours({"ours": ours, "published": theirs}), cpu_ratios={},
        largest_loss_difference={name: largest_difference(one, blocks["ours"]) for name, one in blocks.items()},
        num_rounds=len(ours), stopped_because="", load=1.0,
    )  # fmt: skip


def test_figures_of_a_contest_are_those_worked_out_by_hand(setup: Setup) -> None:
    found = _found(setup, ours=[0.5] * 10, theirs=[1.5] * 10)
    assert (found.ratios["published"].low, found.ratios["published"].high) == pytest.approx((3.0, 3.0))
    assert found.units_per_second("ours") == 2_000
    assert found.units_per_second("published") == pytest.approx(666.67, abs=0.01)
    speed, loss = targets.judge_contest(found)
    assert speed.row()[1:] == [">= 2.5x", "3.00x (3.00 to 3.00)", "reached"]
    assert loss.is_reached


def test_a_target_is_missed_where_only_the_middle_of_the_interval_reaches_it(setup: Setup) -> None:
    found = _found(setup, ours=[0.5] * 10, theirs=[1.1, 1.2, 1.1, 1.2, 1.3, 1.4, 1.4, 1.3, 1.5, 1.3])
    assert found.ratios["published"].value > 2.5 > found.ratios["published"].low
    assert not targets.judge_contest(found)[0].is_reached


def test_no_speed_counts_where_the_losses_differ(setup: Setup) -> None:
    found = _found(setup, ours=[0.5] * 10, theirs=[5.0] * 10, losses=[2.0] * 9 + [2.001])
    assert found.largest_loss_difference["published"] == pytest.approx(5e-4)
    assert [one.is_reached for one in targets.judge_contest(found)] == [False, False]


def test_a_start_is_the_median_of_what_each_turn_takes_beyond_the_import() -> None:
    assert beyond_import({"import torch": [2.0, 3.0, 2.0], "first step": [6.0, 9.0, 7.0]}) == 5.0


def test_settings_are_compared_block_by_block_and_the_median_decides() -> None:
    # The third block has twice as many tokens; the second setting was disturbed in the first.
    assert far_behind([[1.0, 1.0, 2.2], [5.0, 1.1, 2.0]]) == pytest.approx([1.0, 1.1])


def _tried(behind: float, **setting: object) -> dict[str, object]:
    return {"setting": setting, "behind": behind, "seconds": []}


def test_of_settings_within_a_hundredth_of_the_fastest_the_smallest_micro_batches_are_taken() -> None:
    tried = [_tried(1.0, micro_batch_size=8), _tried(1.009, micro_batch_size=4), _tried(1.02, micro_batch_size=2)]
    assert best_of(tried) == {"micro_batch_size": 4}
    assert best_of([*tried[::2], {"setting": {"micro_batch_size": 1}, "failed": "no"}]) == {"micro_batch_size": 8}


def test_on_several_processes_the_few_best_of_one_are_tried_and_what_loads_them_more_evenly() -> None:
    sizes = (1, 2, 4, 8, 16)
    given = [{"order": "as_given", "micro_batch_size": size} for size in sizes]
    evened = [{"order": "by_length", "micro_batch_size": size} for size in sizes]
    on_one = [_tried(1.0 + index / 10, **setting) for index, setting in enumerate(given)]
    assert worth_trying(given + evened, on_one) == given[:4] + evened[:2]
    assert worth_trying(evened, [_tried(1.0, collator="none", micro_batch_size=1), *on_one]) == evened[:2]
    # Micro-batches of one process may not split the share of several.
    assert worth_trying([{"micro_batch_size": 1}], [_tried(1.0, micro_batch_size=2)]) == [{"micro_batch_size": 1}]


class _SmallMemory(Group):
    """A group that has room for micro-batches of two rows."""

    def __init__(self, job: Job) -> None:
        self.job, self.calls = job, list[object]()

    def use(self, setting: Mapping[str, object], *, first_block: int = 0) -> None:
        self.calls.append(setting["micro_batch_size"])

    def run(self, blocks: Blocks) -> float:
        if self.calls[-1] not in (1, 2):
            raise ResourceError("out of memory")
        return 1.0

    def restart(self) -> None:
        self.calls.append("restart")


def test_a_peer_without_room_beside_the_others_takes_its_next_smaller_setting(setup: Setup, tmp_path: Path) -> None:
    group, said = _SmallMemory(_job(setup, tmp_path)), list[str]()
    tried = [_tried(1.0 + size / 100, micro_batch_size=size) for size in (1, 2, 4, 8, 16)]
    assert use_what_fits(group, {"micro_batch_size": 8}, tried, say=said.append) == {"micro_batch_size": 2}
    assert group.calls == [8, "restart", 4, "restart", 2]
    assert len(said) == 2
    with pytest.raises(ResourceError, match="out of memory"):
        use_what_fits(group, {"micro_batch_size": 8}, [], say=said.append)


def test_the_two_fastest_settings_are_tried_compiled_on_a_gpu() -> None:
    seconds = {8: [2.0, 2.0], 16: [1.0, 1.0], 32: [1.0, 1.5]}
    tried = [{"setting": {"micro_batch_size": size}, "seconds": values} for size, values in seconds.items()]
    found = to_compile([*tried, {"setting": {"micro_batch_size": 64}, "failed": "out of memory"}])
    assert found == [{"micro_batch_size": size, "compile": True} for size in (16, 32)]


def test_a_peer_is_compiled_where_its_setting_says_so(setup: Setup, tmp_path: Path) -> None:
    job = _job(setup, tmp_path)
    is_compiled = [loaded_model(job, more)._compiled_call_impl is not None for more in ({}, {"compile": True})]
    assert is_compiled == [False, True]


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_peers_begin_with_the_block_that_is_asked_for(setup: Setup, tmp_path: Path) -> None:
    found = {}
    with groups(setup, _PEERS, tmp_path) as running:
        for peer in _PEERS:
            for first_block in (1, 0):
                running[peer].use(settings_of(setup, peer, tmp_path / "settings")[0], first_block=first_block)
                running[peer].run(blocks := Blocks())
                found[peer, first_block] = blocks.losses[0]
    for peer in _PEERS:
        assert found[peer, 1] == pytest.approx(found["ours", 1], rel=LOSS_TOLERANCE / 100)
        assert found[peer, 1] != pytest.approx(found[peer, 0], rel=LOSS_TOLERANCE)


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_every_order_of_rows_has_the_same_rows_in_a_block_on_two_processes(setup: Setup, tmp_path: Path) -> None:
    pair, losses = dataclasses.replace(setup, world_size=2), {}
    settings = [one for one in settings_of(pair, "trainer", tmp_path / "settings") if one["micro_batch_size"] == 2]
    assert {"padding batch_rebalance", "flattening batch_rebalance", "flattening by_length"} < {
        f"{one['collator']} {one['order']}" for one in settings
    }
    with groups(pair, ["ours", "trainer"], tmp_path) as running:
        for peer, setting in [
            ("ours", {"packing": True, "micro_batch_size": 2}),
            *(("trainer", one) for one in settings),
        ]:
            running[peer].use(setting, first_block=1)
            running[peer].run(blocks := Blocks())
            losses[peer, *setting.values()] = blocks.losses[0]
    assert len(losses) == 6
    assert list(losses.values()) == pytest.approx([next(iter(losses.values()))] * 6, rel=LOSS_TOLERANCE / 100)


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_settings_take_turns_and_one_that_does_not_run_stands_last(setup: Setup, tmp_path: Path) -> None:
    good = [{"collator": "padding", "order": "by_length", "micro_batch_size": size} for size in (1, 2)]
    bad = {"collator": "unknown", "order": "by_length", "micro_batch_size": 4}
    said: list[str] = []
    *ran, failed = tried_settings(setup, "accelerated", tmp_path, settings=[good[0], bad, good[1]], say=said.append)
    assert (failed["setting"], "unknown" in failed["failed"]) == (bad, True)
    assert sorted(one["setting"]["micro_batch_size"] for one in ran) == [1, 2]
    # Where both are close, both run four blocks more.
    assert [len(one["seconds"]) for one in ran] in ([3, 3], [7, 7])
    assert ran[0]["behind"] <= ran[1]["behind"]


def test_settings_that_are_close_run_more_blocks_and_the_others_do_not(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seconds of a block by micro-batch size; those of 2 rows were disturbed in the first three.
    seconds = {1: [1.0] * 7, 2: [1.03] * 3 + [0.8] * 4, 4: [2.0] * 3}

    def in_turns(
        setup: Setup, peer: str, work: Path, settings: Sequence[dict[str, Any]], say: Any, *, visits: Any
    ) -> list[dict[str, Any]]:
        blocks = [block for visit in visits for block in visit]
        return [
            {"setting": one, "seconds": [seconds[one["micro_batch_size"]][block] for block in blocks]}
            for one in settings
        ]

    monkeypatch.setattr(trying, "_in_turns", in_turns)
    settings = [{"micro_batch_size": size} for size in seconds]
    ran = tried_settings(setup, "accelerated", tmp_path, settings=settings, say=lambda _: None)
    assert [(one["setting"]["micro_batch_size"], len(one["seconds"])) for one in ran] == [(2, 7), (1, 7), (4, 3)]
    assert best_of(ran) == {"micro_batch_size": 2}
    # Behind by 2 % of one that was disturbed itself, and not held against those that ran more.
    seconds[1], seconds[2], seconds[4] = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0], [1.02] * 7, [1.06] * 3
    ran = tried_settings(setup, "accelerated", tmp_path, settings=settings, say=lambda _: None)
    assert [one["setting"]["micro_batch_size"] for one in ran] == [2, 1, 4]
    assert best_of(ran) == {"micro_batch_size": 2}


def test_a_setting_that_does_not_run_a_second_time_is_not_taken(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_turns(
        setup: Setup, peer: str, work: Path, settings: Sequence[dict[str, Any]], say: Any, *, visits: Any
    ) -> list[dict[str, Any]]:
        is_again = visits is trying._MORE_VISITS
        return [
            {"setting": one, "failed": "no memory"} if is_again and one["micro_batch_size"] == 1
            else {"setting": one, "seconds": [1.0 + one["micro_batch_size"] / 100] * 3}
            for one in settings
        ]  # fmt: skip

    monkeypatch.setattr(trying, "_in_turns", in_turns)
    settings = [{"micro_batch_size": size} for size in (1, 2)]
    ran, failed = tried_settings(setup, "accelerated", tmp_path, settings=settings, say=lambda _: None)
    assert (failed["setting"], failed["failed"]) == ({"micro_batch_size": 1}, "no memory")
    assert best_of([ran, failed]) == {"micro_batch_size": 2}


@pytest.mark.slow
def test_a_training_that_waits_for_its_rows_misses_the_target(
    project: Path, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SLOW_LOADER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{project}")
    waited = waited_for_data(setup, tmp_path / "work", overrides={"packing": True}, num_steps=8)
    assert waited.num_steps == 8
    # Half a second for every step, less what the step before it took, which nothing is before the first.
    assert 0.5 <= waited.data_wait_seconds <= waited.seconds
    found = targets.judge_wait("slow", waited)
    assert (found.found, found.is_reached) == (f"{100 * waited.data_wait_seconds / waited.seconds:.2f}%", False)


def test_a_wait_is_reached_up_to_2_percent() -> None:
    waits = [Waited(num_steps=20, seconds=10.0, data_wait_seconds=waited) for waited in (0.2, 0.21)]
    assert [targets.judge_wait("", waited).is_reached for waited in waits] == [True, False]


def test_mfu_is_the_share_of_the_peak_and_unknown_without_a_known_gpu(project: Path) -> None:
    # 6 operations per weight, and none for attention to speak of: 989.5 TFLOP/s are the peak of this GPU.
    config = {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
    config |= {"num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151_936}
    found = gpu.mfu_of(config, [1], 100_000, gpu="NVIDIA H100 80GB HBM3")
    assert found == pytest.approx((6 * 493_961_216 + 12 * 24 * 896) * 100_000 / 989.5e12, rel=2e-3)
    assert gpu.mfu_of(config, [1], 100_000, gpu=None) is None
    assert gpu.mfu_of(config, [1], 100_000, gpu="a GPU of tomorrow") is None


def test_a_peer_that_is_not_installed_is_a_target_not_measured(setup: Setup) -> None:
    found = gpu.judged(_found(setup, ours=[0.5] * 10, theirs=[6.0] * 10), None, None)
    (published, trainer) = (one for one in found if "published" in one.what or "Trainer" in one.what)
    assert published.row()[1:] == [">= 10.0x", "12.00x (12.00 to 12.00)", "reached"]
    assert trainer.row()[1:] == [">= 1.3x", "accelerate is not installed", "not measured"]


def test_two_processes_need_8_micro_batches_each(setup: Setup, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4 micro-batches per rank; needed: 8"):
        spread(setup, tmp_path, overrides={"micro_batch_size": 1}, max_seconds=1, half_width=0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
@pytest.mark.parametrize("world_size", [2])
def test_all_peers_do_the_same_work_on_two_processes(setup: Setup, tmp_path: Path, world_size: int) -> None:
    found = contest(
        dataclasses.replace(setup, world_size=world_size), _PEERS, tmp_path, max_seconds=1, half_width=0.5,
        min_rounds=7, say=print, is_trying=False,
    )  # fmt: skip
    assert found.losses_agree, found.largest_loss_difference
    assert set(found.ratios) == {"published", "trainer", "accelerated"}
    assert {len(blocks.seconds) for blocks in found.blocks.values()} == {14}
    assert found.blocks["ours"].num_units == found.blocks["trainer"].num_units


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("workload", "unit"), [("sequence_classification", "token"), ("image_classification", "image")], ids=str
)
def test_peers_do_the_same_work_on_rows_that_have_a_class(
    workload: str, unit: str, world_size: int, tmp_path: Path
) -> None:
    model, slices = make_tiny_workload(workload, tmp_path / workload)
    setup = Setup(
        name=workload, model_dir=model, slice_dir=slices[0], num_rows=45, world_size=world_size, global_batch_size=8,
        seq_len=_SEQ_LEN, steps_per_block=2, workload=workload,
    )  # fmt: skip
    peers, losses = ("ours", "trainer", "accelerated"), {}
    with groups(setup, peers, tmp_path / "running") as running:
        for peer in peers:
            settings = settings_of(setup, peer, tmp_path / "settings")
            assert {one["micro_batch_size"] for one in settings} == {8: {4, 8}, 4: {4}}[8 // world_size]
            for setting in settings:
                running[peer].use(setting)
                running[peer].run(blocks := Blocks())
                losses[peer, *setting.values()] = blocks.losses[0]
                timed = running[peer].job.rows_of(2).tolist() + running[peer].job.rows_of(3).tolist()
                texts = np.diff(np.load(slices[0] / "offsets.npy")).clip(max=_SEQ_LEN) if unit == "token" else None
                assert blocks.num_units == [16 if texts is None else texts[timed].sum()]
    assert len(losses) >= len(peers)
    assert list(losses.values()) == pytest.approx([next(iter(losses.values()))] * len(losses), rel=LOSS_TOLERANCE / 100)
    assert targets.judge_contest(_found(setup, ours=[0.5] * 10, theirs=[1.5] * 10))[0].what.startswith(
        f"{workload}: {unit}s/s against"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classifier", "images"])
def test_a_model_that_tells_classes_apart_has_rows_of_what_is_built_in(name: str, tmp_path: Path) -> None:
    (size,) = (one for one in SIZES if one.name == name)
    said = dataclasses.replace(size, num_rows=60).write(tmp_path, data=None)
    assert "built-in" in said
    workload: Any = find_workload(size.workload)
    rows, model = workload.open_slice(tmp_path / "rows"), workload.load_model(tmp_path / "model")
    batch = rows.collate(range(4), seq_len=size.seq_len)
    assert len(rows) == 60
    assert batch.input_ids.shape[-1] in range(8, size.seq_len + 1, 8)
    loss = float(workload.loss_sum(model, batch).detach()) / 4
    # Random weights know nothing yet: about the logarithm of the number of classes.
    assert loss == pytest.approx(np.log(len(set(rows.labels.tolist()))), rel=0.5)


@pytest.mark.slow
def test_the_gpu_benchmark_runs_where_only_five_packages_are_installed(
    project: Path, setup: Setup, bare_python: Path, tmp_path: Path
) -> None:
    prepared = tmp_path / "prepared"
    (prepared).mkdir()
    (prepared / "rows").symlink_to(setup.slice_dir)
    (prepared / "config.json").write_text(json.dumps(small_qwen2(128, **_SHAPE)))
    facts = {"texts": "random tokens", "num_rows": _NUM_ROWS, "seq_len": _SEQ_LEN, "mean_tokens": 15.0}
    (prepared / "facts.json").write_text(json.dumps(facts))
    arguments = ["--prepared", str(prepared), "--out", str(tmp_path / "found"), "--seconds", "1", "--no-trying"]
    arguments += ["--global-batch-size", "8", "--steps-per-block", "1", "--min-rounds", "7"]
    given = {"PYTHONPATH": str(project), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with warm_environment(given, modules=OF_FIVE_PACKAGES, real=bare_python) as programs:
        subprocess.run(
            [programs / "python", "-m", "benchmarks.throughput.gpu", *arguments],
            check=True, cwd=project, env={**os.environ, **given},
        )  # fmt: skip
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["is_gpu"], found["mfu"], found["targets"]) == (False, None, [])
    assert found["certificate"]["passed"]
    assert found["contest"]["losses_agree"]
    assert set(found["contest"]["units_per_second"]) == {"ours", "published"}
    assert "a CPU's: nothing here says anything about a GPU" in (tmp_path / "found.md").read_text()


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what a benchmark on a GPU needs, and nothing else."""
    return make_bare_python(tmp_path_factory.mktemp("bare"))


def test_the_bare_python_has_none_of_what_stages_import(bare_python: Path) -> None:
    names = ("accelerate", "datasets", "dvc", "pandas", "psutil", "pyarrow", "pydantic", "pynvml", "rich", "ruamel")
    code = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    found = subprocess.run([str(bare_python), "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
