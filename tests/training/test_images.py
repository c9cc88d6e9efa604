"""Image classification: what is drawn and from what, and the loss and both accuracies by hand."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_model

from tasks.data.sources import image_models
from tasks.equivalence.reference import image_classification as reference
from tests.images import CLASS_NAMES, make_image_slice
from training.data.augmentation import Augmentation
from training.process.failure import BadCheckpointError
from training.workloads import image_classification as workload
from training.workloads.image_classification import open_images


@pytest.fixture(scope="module")
def slice_dir(tmp_path_factory):
    """45 images of 16 x 16 pixels: 6 steps of 8, the last of 5; row ids from 100."""
    return make_image_slice(tmp_path_factory.mktemp("images") / "100-145", num_rows=45, size=16, first_row=100)


def drawn(rows, *, seed=1, epoch=1, kind="flip_shift"):
    return dataclasses.replace(rows, augmentation=Augmentation(kind=kind, seed=seed, epoch=epoch))


def test_what_becomes_of_an_image_depends_on_seed_epoch_and_row_alone(slice_dir):
    rows = open_images(slice_dir)
    together = drawn(rows).collate(range(45), seq_len=2).input_ids
    in_another_place = drawn(rows).collate([44, 7, 3], seq_len=2).input_ids
    assert torch.equal(in_another_place, together[[44, 7, 3]])
    for other in (drawn(rows, epoch=2), drawn(rows, seed=2)):
        changed = other.collate(range(45), seq_len=2).input_ids
        assert sum(not torch.equal(one, two) for one, two in zip(changed, together, strict=True)) > 35


def test_every_other_image_is_mirrored_and_shifts_reach_an_eighth_of_the_side():
    found = np.array(Augmentation(kind="flip_shift", seed=3, epoch=1).sample_transforms(range(4000), size=32))
    assert 0.46 < found[:, 0].mean() < 0.54
    for shift in (found[:, 1], found[:, 2]):
        assert sorted(set(shift.tolist())) == list(range(-4, 5))
    flipped = Augmentation(kind="flip", seed=3, epoch=1).sample_transforms(range(50), size=32)
    assert flipped == [(bool(one), 0, 0) for one in found[:50, 0]]


def test_an_image_is_mirrored_then_shifted_and_what_moves_in_is_black(slice_dir):
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


def test_loss_and_both_accuracies_are_those_counted_by_hand(slice_dir, tmp_path):
    image_models.write_image_network(tmp_path, "resnet18", [*"abcdefgh"])
    model = workload.load_model(tmp_path).eval()
    batch = dataclasses.replace(open_images(slice_dir).collate(range(45), seq_len=2), labels=torch.arange(45) % 8)
    with torch.no_grad():
        sums = {name: float(value) for name, value in workload.metrics(model, batch).items()}
        mean = np.array([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
        deviation = np.array([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)
        pixels = (batch.input_ids.numpy() / 255 - mean) / deviation
        logits = model(torch.from_numpy(pixels).float()).double().numpy()
    of_labels = logits[range(45), batch.labels][:, None]
    loss = float((np.log(np.exp(logits - of_labels).sum(1))).sum())
    places = (logits > of_labels).sum(1)
    top1, top5 = int((places == 0).sum()), int((places < 5).sum())
    assert sums == {"loss": pytest.approx(loss, rel=1e-5), "correct": top1, "correct_top5": top5}
    assert 0 < top1 < top5 < 45


TINY_VIT = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
_VIT = {"model_type": "vit", "image_size": 16, "class_names": CLASS_NAMES, **TINY_VIT}


@pytest.mark.parametrize("name", ["resnet50", "vit-b-16"])
def test_the_other_built_in_networks_have_the_loss_of_the_reference(name, slice_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(image_models.CONFIGS, "vit-b-16", {**image_models.CONFIGS["vit-b-16"], **TINY_VIT})
    image_models.write_image_network(tmp_path, name, CLASS_NAMES, image_size=16)
    model, batch = workload.load_model(tmp_path), open_images(slice_dir).collate(range(6), seq_len=2)
    assert not list(model.buffers())
    if name == "vit-b-16":
        # torchvision begins with a head of zeros, for which every network has the same loss.
        torch.nn.init.normal_(model.get_parameter("heads.head.weight"))
        save_model(model, str(tmp_path / "model.safetensors"))
    loss = float(workload.loss_sum(model, batch).detach())
    rows = reference.read_rows(slice_dir, range(6), seq_len=2)
    wanted, number = reference.compute_rows_loss(reference.load_model(tmp_path, device="cpu").eval(), rows)
    assert (loss, number) == (pytest.approx(wanted, rel=1e-5), 6)


@pytest.mark.parametrize(
    "changed",
    [
        {**_VIT, "num_layers": 10**6}, {**_VIT, "hidden_dim": 17}, {**_VIT, "patch_size": 7},
        {**_VIT, "num_heads": True}, {**_VIT, "mlp_dim": "9"}, {"norm": "batch"}, {"num_groups": 7},
        {"class_names": ["one"]}, {"model_type": "resnet101"},
    ],
    ids=lambda one: str(list(one.items())[-1]),
)  # fmt: skip
def test_a_network_that_cannot_be_built_is_refused(changed, toy):
    config = json.loads((toy.models("resnet18") / "config.json").read_text())
    with pytest.raises(BadCheckpointError, match=r"config\.json: got .*; allowed: "):
        workload.build_network({**config, **changed})
