"""Image classification: what is drawn and from what, losses of the reference, and both accuracies by hand."""

import dataclasses

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


def test_what_becomes_of_an_image_follows_from_seed_epoch_and_row_alone_as_in_the_second_computation(slice_dir):
    first, *others = (
        dataclasses.replace(
            open_images(slice_dir), augmentation=Augmentation(kind="flip_shift", seed=seed, epoch=epoch)
        )
        for seed, epoch in ((1, 1), (1, 2), (2, 1))
    )
    together = first.collate(range(45), seq_len=2).input_ids
    assert torch.equal(first.collate([44, 7, 3], seq_len=2).input_ids, together[[44, 7, 3]])
    for other in others:
        changed = other.collate(range(45), seq_len=2).input_ids
        assert sum(not torch.equal(one, two) for one, two in zip(changed, together, strict=True)) > 35
    again = reference.read_rows(slice_dir, range(45), seq_len=2, augmentation=first.augmentation)
    for seen, (image, _) in zip(together.numpy(), again, strict=True):
        assert np.array_equal(seen, image)


def test_shifts_reach_an_eighth_of_the_side_and_the_same_images_are_mirrored_without():
    shifted, flipped = (
        Augmentation(kind=kind, seed=3, epoch=1).sample_transforms(range(500), size=32)
        for kind in ("flip_shift", "flip")
    )
    assert flipped == [(is_mirrored, 0, 0) for is_mirrored, *_ in shifted]
    assert [{*values} for values in zip(*shifted, strict=True)] == [{False, True}, {*range(-4, 5)}, {*range(-4, 5)}]


def test_both_accuracies_are_those_counted_by_hand(slice_dir, tmp_path):
    image_models.write_image_network(tmp_path, "resnet18", [*"abcdefgh"])
    model = workload.load_model(tmp_path).eval()
    batch = dataclasses.replace(open_images(slice_dir).collate(range(45), seq_len=2), labels=torch.arange(45) % 8)
    with torch.no_grad():
        sums = workload.metrics(model, batch)
        logits = model(workload._normalise(batch.input_ids)).numpy()
    places = (logits > logits[range(45), batch.labels][:, None]).sum(1)
    top1, top5 = int((places == 0).sum()), int((places < 5).sum())
    assert (int(sums["correct"]), int(sums["correct_top5"])) == (top1, top5)
    assert 0 < top1 < top5 < 45


TINY_VIT = {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
_VIT = {"model_type": "vit", "image_size": 16, **TINY_VIT}


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
        {**_VIT, "num_layers": 10**6}, {**_VIT, "hidden_dim": 17}, {**_VIT, "num_heads": True}, {"norm": "batch"},
        {"num_groups": 7}, {"class_names": ["one"]}, {"model_type": "resnet101"},
    ],
    ids=lambda one: str(list(one.items())[-1]),
)  # fmt: skip
def test_a_network_that_cannot_be_built_is_refused(changed):
    config = {"model_type": "resnet18", "norm": "group", "num_groups": 2, "class_names": CLASS_NAMES}
    assert workload.build_network(config)
    with pytest.raises(BadCheckpointError, match=r"config\.json: got .*; allowed: "):
        workload.build_network({**config, **changed})
