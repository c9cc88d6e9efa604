"""Images from a folder or a tar: their order, what becomes of bad ones, and what a slice of them holds."""

import errno
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image
from safetensors.torch import load_file, save_file

from tasks.data.slicing.image_classification import Images
from tasks.data.sources import image_models
from tasks.data.sources.image_models import store_image_model
from tasks.data.sources.image_rows import decode_image
from tasks.download import download_rows
from tasks.params.local_files import digest_source, list_image_files
from tasks.params.sources import ModelParams, RowRange
from tasks.process.failure import ConfigurationError, DataError
from tasks.records.manifests import ROWS, RawManifest
from tasks.slice import store_slice
from tests.finished_comparison import read_json
from tests.images import (
    CLASS_NAMES,
    encoded,
    make_image_model,
    striped,
    write_bmp_of_two_bytes,
    write_deep_png,
    write_image_folder,
    write_tar,
)
from tests.tasks.local_rows import RAW, ask

pytestmark = pytest.mark.usefixtures("folder")


def downloaded(source, ranges, heldout, size=12):
    """Download the images to data/raw; return their manifest."""
    params = ask(
        {"source": source, "image_size": size}, ranges=[ranges], heldout=heldout,
        workload="image_classification", model={"source": "builtin:resnet18", "name": "resnet18"},
    )  # fmt: skip
    kind, _, place = source.partition(":")
    download_rows(params, RAW, source_digest=digest_source(Path(place)) if kind == "path" else None)
    return read_json(RAW / "manifest.json")


def sliced(part):
    """Return the arrays of a slice of data/raw, and its manifest."""
    start, end = map(int, part.split("-"))
    about = RawManifest.read(RAW)
    shape = {"class_names": about.class_names, "size": about.image_size, "workload": "image_classification"}
    folder = store_slice(RowRange(start=start, end=end), Images(rows=RAW / ROWS, **shape))
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("images", "labels", "row_ids")}
    return arrays, read_json(folder / "manifest.json")


def names_in(source):
    return [file.name for file in list_image_files(source)]


def write_images(num_per_class, above=""):
    return write_image_folder(Path("images"), num_per_class=num_per_class, above=above)


def store(source="path:model", class_names=CLASS_NAMES, size=None, **changes):
    model = ModelParams(source=source, name="own", **changes)
    return store_image_model(model, class_names=class_names, image_size=size)


def test_the_order_is_that_of_the_names_alone_with_all_classes_everywhere_and_train_before_val():
    write_images(20, "val")
    folder = write_images(40, "train")
    write_images(1, "train/top/.ipynb_checkpoints")
    (folder / "train/notes.txt").write_text("no image")
    (folder / "train/top/._001.png").write_text("what some systems leave in archives")
    names = names_in(folder)
    assert len(names) == len(set(names)) == 180
    assert all(name.startswith("train/") for name in names[:120])
    assert all(name.startswith("val/") for name in names[120:])
    assert {name.split("/")[1] for name in names[:12]} == set(CLASS_NAMES)
    assert names_in(write_tar(Path("images.tar"), folder)) == names
    (folder / "train/top/039.png").unlink()
    assert names_in(folder) == [name for name in names if name != "train/top/039.png"]


def test_class_folders_that_are_links_are_followed_and_no_circle_is(tmp_path):
    folder = tmp_path / write_images(2)
    names = names_in(folder)
    digest = digest_source(folder)
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in CLASS_NAMES:
        (linked / name).symlink_to(folder / name)
    (folder / CLASS_NAMES[0] / "circle").symlink_to(linked)
    assert names_in(linked) == names
    assert digest_source(linked) == digest


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_a_slice_holds_the_pixels_and_classes_of_its_rows(kind):
    source = write_images(10)
    if kind == "tar":
        source = write_tar(Path("images.tar"), source)
    files = list_image_files(source)
    manifest = downloaded(f"path:{source}", "0-20", "20-30")
    assert manifest["class_names"] == CLASS_NAMES
    assert (manifest["num_rows"], manifest["quarantined"]) == (30, {})
    arrays, _ = sliced("5-20")
    assert arrays["row_ids"].tolist() == list(range(5, 20))
    for row, image, label in zip(arrays["row_ids"], arrays["images"], arrays["labels"], strict=True):
        name = Path(files[row].name)
        assert CLASS_NAMES[label] == name.parent.name
        assert np.array_equal(image.transpose(1, 2, 0), striped(name.parent.name, int(name.stem)))


def test_an_image_is_cut_to_its_middle_square_and_resized():
    wide = np.zeros((40, 120, 3), dtype=np.uint8)
    wide[:, :40], wide[:, 40:80], wide[:, 80:] = 10, 100, 250
    clear = np.dstack([wide, np.zeros((40, 120), dtype=np.uint8)])
    white = write_bmp_of_two_bytes(0xFFFF, size=12)
    for content, value in ((encoded(wide), 100), (encoded(wide[:, :, 0]), 100), (encoded(clear), 255), (white, 255)):
        image = decode_image(content, size=12)
        assert (image.shape, np.unique(image).tolist()) == ((12, 12, 3), [value])


@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "WEBP"])
def test_a_photograph_stands_as_the_camera_was_held(kind):
    lying = np.zeros((96, 64, 3), dtype=np.uint8)
    lying[:48, :32], lying[:48, 32:], lying[48:, :32] = 240, 160, 80
    more = {"save_all": True, "append_images": [Image.fromarray(lying)]} if kind == "MPO" else {}
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    # Of what the camera wrote but its pixels nothing can be read in the second.
    for written, upright in ((exif, np.rot90(lying, -1).copy()), (b"Exif\0\0" + bytes(20), lying)):
        photograph = encoded(lying, kind, exif=written, **more)
        stands = decode_image(encoded(upright), size=4)
        assert np.allclose(decode_image(photograph, size=4), stands, atol=8)


def test_what_is_no_good_image_is_known_by_its_fault():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    # Behind it stands how large the image is.
    head = encoded(np.zeros((4, 4, 3), dtype=np.uint8))[:16]
    for content, fault in (
        (encoded(noise, "JPEG")[:1500], "unreadable"),
        (b"", "unreadable"),
        # A real image of 81 million pixels in some 10 kB, and one that says that it has 10 thousand million.
        (encoded(np.zeros((9000, 9000), dtype=bool)), "too_large"),
        (head + (100_000).to_bytes(4, "big") * 2 + bytes(100), "unreadable"),
        *((write_deep_png(*kind), "depth") for kind in ((0, 1), (2, 3), (4, 2), (6, 4))),
    ):
        assert decode_image(content, size=12) == fault


def test_a_bad_image_is_left_out_and_counted_and_the_others_keep_their_rows():
    folder = write_images(10)
    (folder / "right/bad.png").write_bytes(write_deep_png(0, 1))
    names = names_in(folder)
    manifest = downloaded("path:images", "0-30", "30-31")
    arrays, facts = sliced("0-31")
    assert manifest["quarantined"] == facts["quarantined"] == {"depth": 1}
    left = [row for row in range(31) if names[row] != "right/bad.png"]
    assert arrays["row_ids"].tolist() == left
    assert len(arrays["images"]) == facts["num_rows"] == 30
    assert [CLASS_NAMES[label] for label in arrays["labels"]] == [names[row].split("/")[0] for row in left]


def test_too_many_bad_images_are_refused_and_the_first_is_named():
    folder = write_images(6)
    for index in range(2):
        (folder / "top" / f"{index:03d}.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"2 of 18 images: no image that can be decoded.*top/00.\.png.*at most 5%"):
        downloaded("path:images", "0-17", "17-18")


def test_files_of_other_suffixes_are_left_out_with_a_warning_that_counts_them(caplog):
    folder = write_images(2)
    (folder / "cats").mkdir()
    for name in ("cats/0.tif", "cats/1.TIF", "notes.txt", "cats/.DS_Store"):
        (folder / name).write_text("no image that is read")
    (folder / "top/001.png").rename(folder / "top/001.PNG")
    assert downloaded("path:images", "0-5", "5-6")["class_names"] == CLASS_NAMES
    assert "left out: 3 files, 2 of '.tif', 1 of '.txt'; allowed: .jpg" in caplog.text


def test_a_folder_that_cannot_be_read_is_refused(monkeypatch):
    folder = write_images(2)
    scandir = os.scandir

    def deny(place):
        if Path(place).name == "right":
            raise PermissionError(errno.EACCES, "Permission denied", place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", deny)
    for read in (list_image_files, digest_source):
        with pytest.raises(PermissionError, match="right"):
            read(folder)


def test_a_tar_that_is_not_whole_is_refused():
    tar = write_tar(Path("images.tar"), write_images(2))
    with tarfile.open(tar) as archive:
        head = archive.getmembers()[-2].offset
    whole = tar.read_bytes()
    # Cut in a file, before a header and in one; a damaged header; two in one.
    damaged = whole[:head] + b"damaged" + whole[head + 7 :]
    for content in (whole[:700], whole[:head], whole[: head + 200], damaged, whole + whole):
        tar.write_bytes(content)
        with pytest.raises(ValueError, match=r"no readable tar \(.*\); allowed: an uncompressed \.tar"):
            list_image_files(tar)


def test_sources_that_are_none_are_refused():
    folder = write_images(2)
    (folder / "stray.png").write_bytes(encoded(striped("top", 1)))
    with pytest.raises(ValueError, match=r"'stray\.png' is in no class folder"):
        list_image_files(folder)
    shutil.rmtree(folder / "left")
    shutil.rmtree(folder / "right")
    (folder / "stray.png").unlink()
    with pytest.raises(ValueError, match="all images are of one class, 'top'"):
        list_image_files(folder)


def test_links_and_devices_in_a_tar_are_no_images():
    file = write_tar(Path("images.tar"), write_images(2))
    with tarfile.open(file, "a:") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo(f"top/link{kind.decode()}.png")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    assert len(list_image_files(file)) == 6


def test_the_built_in_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    downloaded("builtin:digits", "0-1700", "1700-1797", size=8)
    arrays, _ = sliced("0-1797")
    places = [int(Path(file.name).stem) for file in list_image_files(next(Path(".work/download/digits").iterdir()))]
    digits = load_digits()
    assert sorted(places) == list(range(1_797))
    assert np.array_equal(arrays["labels"], digits.target[places])
    grey = np.rint(digits.images[places] * 255 / 16).astype(np.uint8)
    assert np.array_equal(arrays["images"], np.repeat(grey[:, None], 3, axis=1))


def test_a_model_of_other_classes_or_of_no_images_is_refused():
    made = make_image_model(Path("model"))
    assert read_json(store() / "manifest.json")["files"]
    with pytest.raises(DataError, match=r"tells .*left.* apart, and the data has .*a.*b"):
        store(class_names=["a", "b"])
    config = read_json(made / "config.json")
    (made / "config.json").write_text(json.dumps({**config, "norm": "batch"}))
    with pytest.raises(DataError, match=r"config\.json: got .*batch.*allowed: .*norm sync_batch, or group"):
        store()
    (made / "config.json").write_text(json.dumps(config))
    weights = load_file(made / "model.safetensors")
    weights["fc.weight"][0, 0] = float("inf")
    save_file(weights, made / "model.safetensors")
    with pytest.raises(DataError, match=r"two images have a loss or gradients that are not finite"):
        store()
    with pytest.raises(ConfigurationError, match=r"builtin:tiny-qwen2.*for images; allowed: builtin:resnet18"):
        store("builtin:tiny-qwen2")


def test_a_vision_transformer_is_made_for_the_size_of_the_images_alone(monkeypatch):
    small = {"patch_size": 8, "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    monkeypatch.setitem(image_models.CONFIGS, "vit-b-16", {**image_models.CONFIGS["vit-b-16"], **small})
    with pytest.raises(ConfigurationError, match=r"dataset\.image_size: got 20 for builtin:vit-b-16; allowed: .* of 8"):
        store("builtin:vit-b-16", size=20)
    stored = store("builtin:vit-b-16", size=16)
    assert read_json(stored / "manifest.json")["label"].startswith("vision transformer, 0.0 M")
    assert stored != store("builtin:vit-b-16", size=24)
    with pytest.raises(DataError, match=r"it is for images of 16 pixels a side, and dataset\.image_size is 32"):
        store(f"path:{stored}", size=32)


def _save_weights(file, *, kind, num_classes):
    """Write what torchvision's network of this kind has as a state dict, inside a checkpoint or not; return it."""
    import torch
    from torchvision.models import get_model

    weights = get_model(kind, weights=None, num_classes=num_classes).state_dict()
    weights["bn1.running_mean"] += 0.25
    if file.suffix == ".safetensors":
        save_file(weights, file)
    else:
        torch.save({"epoch": 3, "state_dict": {f"module.{name}": part for name, part in weights.items()}}, file)
    return weights


@pytest.mark.parametrize(("name", "num_classes"), [("a.pth", 10), ("b.safetensors", 3)])
def test_pretrained_weights_of_a_file_become_a_model_with_a_head_for_the_data(name, num_classes):
    import torch

    from training.workloads.image_classification import load_model

    weights = _save_weights(Path(name), kind="resnet18", num_classes=num_classes)
    folder = store(f"path:{name}", norm="sync_batch")
    manifest = read_json(folder / "manifest.json")
    assert (manifest["model_type"], manifest["is_random_weights"]) == ("resnet18", False)
    found = load_model(folder).state_dict()
    same = {key for key, part in weights.items() if key in found and torch.equal(found[key], part)}
    assert weights.keys() - same == (set() if num_classes == 3 else {"fc.weight", "fc.bias"})
    assert found["fc.weight"].shape[0] == 3
    assert store(f"path:{name}", norm="sync_batch") == folder


def test_a_file_of_no_such_weights_is_refused_in_one_line():
    import torch

    _save_weights(Path("good.pth"), kind="resnet18", num_classes=3)
    _save_weights(Path("deep.pth"), kind="resnet34", num_classes=3)
    torch.save({"bn1.running_mean": object}, "code.pth")
    for name, norm, message in (
        ("good.pth", None, "model.norm: got None, and good.pth has running statistics .*; allowed: sync_batch"),
        ("deep.pth", "sync_batch", "weights of neither resnet18 nor resnet50 of torchvision"),
        ("code.pth", "sync_batch", "code.pth: .*allowed: a state dict as torch.save"),
    ):
        with pytest.raises(DataError, match=message):
            store(f"path:{name}", norm=norm)
