"""Held-out rows with a source of their own: a file or a split beside that of the rows to be trained on."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tasks.params import load_params
from tasks.process.failure import ConfigurationError, DataError
from tests.tasks.local_rows import RAW, TEXTS, ask, cut, download, jsonl, read_defaults

pytestmark = pytest.mark.usefixtures("folder")
SAME = "is dataset.source, or one of them is in the other"


def classify(dataset):
    """Return a comparison of classifiers of rows 0-20, with rows 0-10 of another source held out."""
    model = {"source": "builtin:tiny-modernbert", "name": "tiny"}
    return ask({**dataset, "label": "class"}, heldout="0-10", workload="sequence_classification", model=model)


def two_files(texts, classes):
    """Write 20 rows of two classes to be trained on, and these to be held out; return the section `dataset`."""
    for name, *columns in (("rows", TEXTS[:20], ["a", "b"] * 10), ("test", texts, classes)):
        jsonl([{"text": text, "class": label} for text, label in zip(*columns, strict=True)], f"{name}.jsonl")
    return {"source": "path:rows.jsonl", "heldout_source": "path:test.jsonl"}


def test_held_out_rows_of_another_file_are_read_and_counted_by_what_they_say():
    held_out = [*TEXTS[20:24], TEXTS[3], *(f"Other words {number}." for number in range(5)), "beyond what is asked for"]
    params = classify(two_files(held_out, ["b"] * 11))
    assert (params.num_rows_needed, params.heldout_name) == (20, "heldout-0-10")
    _, manifest = download(params)
    assert pq.read_table(RAW / "heldout" / "rows.parquet")["text"].to_pylist() == held_out[:10]
    assert (manifest["num_rows"], manifest["num_heldout_rows_seen"], manifest["num_duplicate_rows"]) == (20, 1, 1)
    # A file with one class alone has the numbers of all.
    assert json.loads((RAW / "heldout" / "manifest.json").read_text())["class_names"] == ["a", "b"]


@pytest.mark.parametrize(
    ("texts", "classes", "message"),
    [
        (TEXTS[:10], ["c"] * 10, "has rows of the class 'c', which no row of path:rows.jsonl has; allowed: a, b"),
        ([None, *TEXTS[:9]], ["a"] * 10, "1 row is null"),
    ],
)
def test_columns_of_the_held_out_file_are_checked_as_those_of_the_other(texts, classes, message):
    with pytest.raises(DataError, match=rf"^dataset\.heldout_source path:test\.jsonl.*{message}"):
        download(classify(two_files(texts, classes)))


@pytest.mark.parametrize(
    ("source", "heldout_source", "message"),
    [
        ("rows.jsonl", "./rows.jsonl", SAME),
        (".", "linked/rows.jsonl", SAME),
        ("rows.jsonl", ".", SAME),
        ("rows.jsonl", "none.jsonl", "dataset.heldout_source: no file none.jsonl"),
        ("rows.jsonl", "short.parquet", "heldout: row 10 is beyond the 3 rows of short.parquet"),
    ],
)
def test_a_source_of_held_out_rows_that_is_none_is_refused_before_anything_starts(source, heldout_source, message):
    two_files(TEXTS[:10], ["a"] * 10)
    pq.write_table(pa.table({"text": TEXTS[:3]}), "short.parquet")
    Path("linked").symlink_to(".")
    dataset = {"source": f"path:{source}", "heldout_source": f"path:{heldout_source}"}
    asked = {**read_defaults(), "ranges": ["0-20"], "heldout": "0-10", "dataset": dataset}
    Path("params.yaml").write_text(json.dumps(asked))
    with pytest.raises(ConfigurationError, match=rf"^params\.yaml: .*{re.escape(message)}"):
        load_params()


def test_slices_of_both_sources_stand_beside_each_other_whatever_the_numbers_of_their_rows():
    for source, number in (("train", 0), ("test", 100)):
        for label, index in itertools.product(("ant", "bee"), range(5)):
            (folder := Path(source, label)).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number + index, ord(label[0]), 7)).save(folder / f"{index}.png")
    params = ask(
        {"source": "path:train", "image_size": 8, "heldout_source": "path:test"}, ranges=["0-10"], heldout="0-10",
        workload="image_classification", model={"source": "builtin:resnet18", "name": "resnet18"},
    )  # fmt: skip
    download(params)
    assert cut(params, Path("none"))["heldout"] == "heldout-0-10"
    for name, reds in (("0-10", (0, 4)), ("heldout-0-10", (100, 104))):
        images = np.load(f"data/slices/{name}/images.npy")[:, 0, 0, 0]
        assert (images.min(), images.max()) == reds
