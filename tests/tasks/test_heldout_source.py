"""Held-out rows with a source of their own: a file or a split beside that of the rows to be trained on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tasks.download import download_rows
from tasks.params import Params, load_params
from tasks.process.failure import ConfigurationError, DataError
from tasks.slice import write_slices

RAW = Path("data/raw")
TEXTS = [f"Text {number} of the data set, in its own words." for number in range(24)]


pytestmark = pytest.mark.usefixtures("folder")


def ask(project: Path, dataset: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the default comparison of rows 0-20, with rows 0-10 of another source held out."""
    defaults = load_params(project / "presets" / "embedded.yaml").model_dump(mode="json")
    return {**defaults, "ranges": ["0-20"], "heldout": "0-10", "dataset": dataset, **changes}


def classify(dataset: dict[str, Any]) -> dict[str, Any]:
    """Return what a comparison of classifiers has of its own."""
    return {
        "dataset": {**dataset, "label": "class"},
        "workload": "sequence_classification",
        "model": {"source": "builtin:tiny-modernbert", "name": "tiny"},
    }


def write_rows(name: str, texts: list[Any], classes: list[Any]) -> None:
    lines = [json.dumps({"text": text, "class": label}) for text, label in zip(texts, classes, strict=True)]
    Path(name).write_text("\n".join(lines))


def two_files(texts: list[Any], classes: list[Any]) -> dict[str, Any]:
    """Write 20 rows of two classes to be trained on, and these to be held out; return the section `dataset`."""
    write_rows("rows.jsonl", TEXTS[:20], ["a", "b"] * 10)
    write_rows("test.jsonl", texts, classes)
    return {"source": "path:rows.jsonl", "heldout_source": "path:test.jsonl"}


def downloaded(params: Params) -> tuple[dict[str, Any], list[str]]:
    """Return the manifest that the stage writes, and the held-out texts."""
    download_rows(params, RAW, source_digest=None)
    texts = pq.read_table(RAW / "heldout" / "rows.parquet")["text"].to_pylist()
    return json.loads((RAW / "manifest.json").read_text()), texts


def test_held_out_rows_of_another_file_are_read_and_counted_by_what_they_say(project: Path) -> None:
    held_out = [
        *TEXTS[20:24],
        TEXTS[3],
        *(f"Other words {number}." for number in range(5)),
        "beyond the rows asked for",
    ]
    dataset = two_files(held_out, ["b"] * 11)
    params = Params.model_validate(ask(project, **classify(dataset)))
    assert (params.num_rows_needed, params.heldout_name, params.heldout_title) == (
        20, "heldout-0-10", "0-10 of path:test.jsonl",
    )  # fmt: skip
    manifest, texts = downloaded(params)
    assert texts == held_out[:10]
    assert (manifest["num_rows"], manifest["num_heldout_rows_seen"], manifest["num_duplicate_rows"]) == (20, 1, 1)
    assert manifest["heldout_source"] == "path:test.jsonl"
    # A file with one class alone has the numbers of all.
    assert json.loads((RAW / "heldout" / "manifest.json").read_text())["class_names"] == ["a", "b"]


@pytest.mark.parametrize(
    ("texts", "classes", "message"),
    [
        (TEXTS[:10], ["c"] * 10, "has rows of the class 'c', which no row of path:rows.jsonl has; allowed: a, b"),
        (TEXTS[:10], [0, 1] * 5, "has rows of the class '0', which no row of path:rows.jsonl has"),
        (TEXTS[:10], [0.5] * 10, "allowed: a whole number, or a line of text"),
        ([1.5, *TEXTS[:9]], ["a"] * 10, "row 0 is float; allowed: text"),
        ([None, *TEXTS[:9]], ["a"] * 10, "1 row is null"),
    ],
)
def test_columns_of_the_held_out_file_are_checked_as_those_of_the_other(
    project: Path, texts: list[Any], classes: list[Any], message: str
) -> None:
    dataset = two_files(texts, classes)
    with pytest.raises(DataError, match=r"^dataset\.heldout_source path:test\.jsonl") as refused:
        download_rows(Params.model_validate(ask(project, **classify(dataset))), RAW, source_digest=None)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"heldout_source": "path:rows.jsonl"}, "allowed: another file as path:FILE"),
        ({"heldout_source": "path:./rows.jsonl"}, "is the file of dataset.source"),
        ({"heldout_source": "path:none.jsonl"}, "dataset.heldout_source: no file none.jsonl"),
        ({"heldout_source": "split:test"}, "allowed: another file as path:FILE"),
        ({"heldout_source": "test.jsonl"}, "allowed: another file as path:FILE"),
        ({"heldout_source": "path:short.parquet"}, "heldout: row 10 is beyond the 3 rows of short.parquet"),
        (
            {"source": "hub:some/data", "revision": "main", "split": "train+test", "heldout_source": "split:test"},
            "got split:test, which is trained on",
        ),
    ],
)
def test_a_source_of_held_out_rows_that_is_none_is_refused_before_anything_starts(
    project: Path, dataset: dict[str, Any], message: str
) -> None:
    two_files(TEXTS[:10], ["a"] * 10)
    pq.write_table(pa.table({"text": TEXTS[:3], "label": ["a"] * 3}), "short.parquet")
    Path("params.yaml").write_text(json.dumps(ask(project, {"source": "path:rows.jsonl", **dataset})))
    with pytest.raises(ConfigurationError, match=r"^params\.yaml: ") as refused:
        load_params()
    assert message in str(refused.value)


def test_slices_of_both_sources_stand_beside_each_other_whatever_the_numbers_of_their_rows(project: Path) -> None:
    for source, number in (("train", 0), ("test", 100)):
        for label in ("ant", "bee"):
            folder = Path(source, label)
            folder.mkdir(parents=True)
            for index in range(5):
                Image.new("RGB", (8, 8), (number + index, ord(label[0]), 7)).save(folder / f"{index}.png")
    params = Params.model_validate(
        ask(
            project,
            {"source": "path:train", "image_size": 8, "heldout_source": "path:test"},
            ranges=["0-10"], workload="image_classification", model={"source": "builtin:resnet18", "name": "resnet18"},
        )
    )  # fmt: skip
    download_rows(params, RAW, source_digest=None)
    write_slices(params, raw=RAW, base_model=Path("none"), slices=Path("slices"))
    found = {name: np.load(Path("slices", name, "images.npy"))[:, 0, 0, 0] for name in ("0-10", "heldout-0-10")}
    assert {name: (images.min(), images.max()) for name, images in found.items()} == {
        "0-10": (0, 4), "heldout-0-10": (100, 104),
    }  # fmt: skip
    manifest = json.loads(Path("slices/manifest.json").read_text())
    assert manifest["heldout"] == "heldout-0-10"
