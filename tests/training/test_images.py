"""Image classification: what is drawn and from what, the loss and both accuracies by hand, several ranks to the bit."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_model

from tasks.equivalence.orders import make_rank_order
from tasks.equivalence.reference import image_classification as reference
from tasks.equivalence.reference.update import OneProcess
from tests.images import CLASS_NAMES, make_image_model, make_image_slice
from tests.tiny import make_config
from tests.training.conftest import are_bitwise_equal, facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.data.augmentation import Augmentation
from training.data.image_rows import ImageRows, open_images
from training.model.weights import compute_parameter_checksum
from training.probing.timed_blocks import Block, BlockRunner
from training.probing.variants import Variant
from training.process.distributed import Ranks
from training.process.failure import BadCheckpointError, UnfitModelError
from training.workloads import image_classification as workload


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in ResNet18 for three classes."""
    return make_image_model(tmp_path_factory.mktemp("images") / "model")


@pytest.fixture(scope="module")
def slice_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """45 images of 16 x 16 pixels: 6 steps of 8, the last of 5; row ids from 100."""
    return make_image_slice(tmp_path_factory.mktemp("images") / "100-145", num_rows=45, size=16, first_row=100)


def config_for(work: Path, model_dir: Path, slice_dir: Path, **changes: Any) -> dict[str, Any]:
    return make_config(
        work, model_dir, [slice_dir],
        **{
            "workload": "image_classification", "optimizer": "sgd", "learning_rate": 0.05, "schedule": "cosine",
            "augment": "flip_shift", "max_grad_norm": 5.0, **changes,
        },
    )  # fmt: skip


def drawn(rows: ImageRows, *, seed: int = 1, epoch: int = 1, kind: str = "flip_shift") -> ImageRows:
    return dataclasses.replace(rows, augmentation=Augmentation(kind=kind, seed=seed, epoch=epoch))


def test_what_becomes_of_an_image_depends_on_seed_epoch_and_row_alone(slice_dir: Path) -> None:
    rows = open_images(slice_dir)
    together = drawn(rows).collate(range(45), seq_len=2).input_ids
    in_another_place = drawn(rows).collate([44, 7, 3], seq_len=2, dropout_seed=9, place=3).input_ids
    assert torch.equal(in_another_place, together[[44, 7, 3]])
    other_epoch, other_seed = drawn(rows, epoch=2), drawn(rows, seed=2)
    for other in (other_epoch, other_seed):
        changed = other.collate(range(45), seq_len=2).input_ids
        assert sum(not torch.equal(one, two) for one, two in zip(changed, together, strict=True)) > 35


def test_every_other_image_is_mirrored_and_shifts_reach_an_eighth_of_the_side() -> None:
    found = np.array(Augmentation(kind="flip_shift", seed=3, epoch=1).sample_transforms(range(4000), size=32))
    assert 0.46 < found[:, 0].mean() < 0.54
    for shift in (found[:, 1], found[:, 2]):
        assert sorted(set(shift.tolist())) == list(range(-4, 5))
    flipped = Augmentation(kind="flip", seed=3, epoch=1).sample_transforms(range(50), size=32)
    assert {(down, right) for _, down, right in flipped} == {(0, 0)}
    assert [one[0] for one in flipped] == found[:50, 0].astype(bool).tolist()


def test_an_image_is_mirrored_then_shifted_and_what_moves_in_is_black(slice_dir: Path) -> None:
    rows = open_images(slice_dir)
    augmentation = Augmentation(kind="flip_shift", seed=1, epoch=1)
    seen = drawn(rows).collate(range(45), seq_len=2).input_ids.numpy()
    again = reference.read_rows(slice_dir, range(45), seq_len=2, augmentation=augmentation)
    for index, (image, label) in enumerate(again):
        assert np.array_equal(seen[index], image)
        assert label == rows.labels[index]
    ((is_mirrored, down, right),) = augmentation.sample_transforms([100], size=16)
    for y in range(16):
        for x in range(16):
            was_y, was_x = y - down, x - right
            is_inside = 0 <= was_y < 16 and 0 <= was_x < 16
            wanted = rows.images[0][:, was_y, 15 - was_x if is_mirrored else was_x] if is_inside else np.zeros(3)
            assert np.array_equal(seen[0][:, y, x], wanted)


def test_loss_and_both_accuracies_are_those_counted_by_hand(slice_dir: Path, tmp_path: Path) -> None:
    names = [str(index) for index in range(8)]
    (tmp_path / "wide").mkdir()
    from tasks.data.builtin.image_networks import write_image_network

    write_image_network(tmp_path / "wide", "resnet18", names)
    model = workload.load_model(tmp_path / "wide").eval()
    batch = open_images(slice_dir).collate(range(45), seq_len=2)
    batch = dataclasses.replace(batch, labels=torch.arange(45) % 8)
    with torch.no_grad():
        sums = {name: float(value) for name, value in workload.metrics(model, batch).items()}
        mean = np.array([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
        deviation = np.array([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)
        pixels = (batch.input_ids.numpy() / 255 - mean) / deviation
        logits = model(torch.from_numpy(pixels).float()).double().numpy()
    loss, top1, top5 = 0.0, 0, 0
    for row, label in zip(logits, batch.labels.tolist(), strict=True):
        loss += np.log(np.exp(row - row.max()).sum()) + row.max() - row[label]
        rank = int((row > row[label]).sum())
        top1, top5 = top1 + (rank == 0), top5 + (rank < 5)
    assert sums == {"loss": pytest.approx(loss, rel=1e-5), "correct": top1, "correct_top5": top5}
    assert 0 < top1 < top5 < 45


TINY_VIT = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}


@pytest.mark.parametrize("name", ["resnet50", "vit-b-16"])
def test_the_other_built_in_networks_have_the_loss_of_the_reference(
    name: str, slice_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.data.builtin import image_networks

    monkeypatch.setitem(image_networks.CONFIGS, "vit-b-16", {**image_networks.CONFIGS["vit-b-16"], **TINY_VIT})
    image_networks.write_image_network(tmp_path, name, CLASS_NAMES, image_size=16)
    model, batch = workload.load_model(tmp_path), open_images(slice_dir).collate(range(6), seq_len=2)
    assert not list(model.buffers())
    if name == "vit-b-16":
        # torchvision begins with a head of zeros, for which every network has the same loss.
        torch.nn.init.normal_(model.get_parameter("heads.head.weight"))
        save_model(model, str(tmp_path / "model.safetensors"))
    loss = float(workload.loss_sum(model, batch).detach())
    rows = reference.read_rows(slice_dir, range(6), seq_len=2)
    wanted, number = reference.compute_rows_loss(tmp_path, rows, device="cpu")
    assert (loss, number) == (pytest.approx(wanted, rel=1e-5), 6)
    dummy = workload.make_dummy_micro_batch(2)
    if name == "vit-b-16":
        dummy = dataclasses.replace(dummy, input_ids=dummy.input_ids[..., :16, :16])
    nothing = workload.loss_sum(model, dummy)
    nothing.backward()
    assert float(nothing) == 0
    assert all(not bool(part.grad.any()) for part in model.parameters() if part.grad is not None)


def test_the_blank_image_of_a_rank_without_rows_is_as_large_as_a_vision_transformer_wants_it() -> None:
    model = workload.build_network({"model_type": "vit", "image_size": 48, "class_names": CLASS_NAMES, **TINY_VIT})
    assert float(workload.loss_sum(model, workload.make_dummy_micro_batch(2)).detach()) == 0


@pytest.mark.parametrize(
    "changed", [{"num_layers": 10**6}, {"hidden_dim": 17}, {"patch_size": 7}, {"num_heads": True}, {"mlp_dim": "9"}]
)
def test_a_vision_transformer_that_cannot_be_built_is_refused(changed: dict[str, Any]) -> None:
    config = {"model_type": "vit", "image_size": 16, "class_names": CLASS_NAMES, **TINY_VIT, **changed}
    with pytest.raises(BadCheckpointError, match=r"config\.json: got .*; allowed: .*model_type vit"):
        workload.build_network(config)


def test_a_network_with_running_statistics_is_refused(model_dir: Path, tmp_path: Path) -> None:
    model = workload.load_model(model_dir)
    assert list(model.buffers()) == []
    config = json.loads((model_dir / "config.json").read_text())
    for changed in ({"norm": "batch"}, {"num_groups": 7}, {"class_names": ["one"]}, {"model_type": "resnet101"}):
        with pytest.raises(BadCheckpointError, match=r"config\.json: got .*; allowed: "):
            workload.build_network({**config, **changed})
    (tmp_path / "config.json").write_text(json.dumps({**config, "class_names": ["a", "b"]}))
    (tmp_path / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes())
    with pytest.raises(BadCheckpointError, match=r"not loadable: .*fc"):
        workload.load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing": True}, "packing: true, but the workload image_classification has none"),
        ({"compile": True}, "compile: true, but the workload image_classification has none"),
        ({"precision": "bf16"}, "precision: bf16 on CPU, where .* use precision: fp32, or a GPU"),
    ],
)
def test_what_images_cannot_be_trained_with_is_refused_in_one_line(
    model_dir: Path, slice_dir: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = parsed(config_for(tmp_path / "work", model_dir, slice_dir, **changes), tmp_path)
    with pytest.raises(UnfitModelError, match=message):
        workload.prepare(workload.load_model(model_dir), config)


@pytest.mark.parametrize("damage", ["missing pixels", "of floats", "fewer labels"])
def test_arrays_that_do_not_belong_together_are_refused(slice_dir: Path, tmp_path: Path, damage: str) -> None:
    images, labels, row_ids = (np.load(slice_dir / f"{name}.npy") for name in ("images", "labels", "row_ids"))
    images = {"missing pixels": images[:-1], "of floats": images.astype(np.float32)}.get(damage, images)
    labels = labels[:-1] if damage == "fewer labels" else labels
    for name, array in (("images", images), ("labels", labels), ("row_ids", row_ids)):
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(ValueError, match="do not belong together; the slice stage makes them anew"):
        open_images(tmp_path)


def test_a_measured_block_counts_images_and_leaves_the_weights(
    alone: Ranks, model_dir: Path, slice_dir: Path, tmp_path: Path
) -> None:
    config = parsed(config_for(tmp_path, model_dir, slice_dir, strategy="ddp"), tmp_path)
    runner = BlockRunner(config, alone)
    found = runner.run(Block(variant=Variant(), steps=[1, 6], data="loader"))
    assert [found[f"num_{unit}"] for unit in ("samples", "tokens", "positions")] == [8 + 5] * 3
    assert 0 < found["data_wait_seconds"] < found["seconds"]
    assert runner._get(Variant()).source.collate([0], seq_len=2).input_ids.tolist() == (
        drawn(open_images(slice_dir)).collate([0], seq_len=2).input_ids.tolist()
    )
    trained = runner._get(Variant()).strategy.replica.parameter_checksum()
    assert trained == compute_parameter_checksum(workload.load_model(model_dir))
    assert runner.facts(Variant())["can"] == []


@pytest.mark.slow
def test_one_and_two_ranks_train_the_same_weights_to_the_bit_in_exact_mode_and_nearly_so_without(
    ranks: ForkedRanks, model_dir: Path, slice_dir: Path, tmp_path: Path
) -> None:
    ends = {}
    for exact in (True, False):
        for world_size in (1, 2):
            cell = {"strategy": "single" if world_size == 1 else "ddp", "world_size": world_size, "exact": exact}
            work = tmp_path / f"{exact}-{world_size}"
            config = ranks.train(config_for(work, model_dir, slice_dir, **cell))
            ends[exact, world_size] = weights_at_end(config)
            assert facts_of(config)["num_samples"] == facts_of(config)["num_tokens"] == 45
    assert are_bitwise_equal(ends[True, 2], ends[True, 1])
    assert relative_l2(ends[False, 2], ends[False, 1]) < 2e-6
    told = parsed(config_for(tmp_path / "one", model_dir, slice_dir, strategy="ddp", world_size=2), tmp_path)
    one_process = OneProcess(told)
    again = one_process.update(make_rank_order(told), on_step=lambda: None).weights
    assert relative_l2(ends[False, 2], again) < 2e-6
    assert relative_l2(one_process.start_weights, again) > 1e-3, "the updates are too small to tell anything"
