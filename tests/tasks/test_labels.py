"""The classes of rows, from the data set to the base model and the slices."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Qwen2ForCausalLM

from tasks.data.builtin.corpus import PACKAGES
from tasks.data.builtin.tiny_models import write_tiny_modernbert
from tasks.data.sources.models import give_head
from tasks.process.failure import DataError
from tests.tasks.local_rows import TEXTS, ask, cut, download, write_columns
from tests.tiny import make_tiny_model, with_manifest
from training.data.batches import open_slice
from training.process.files import digest_file

pytestmark = pytest.mark.usefixtures("folder")
MODEL = {"source": "builtin:tiny-modernbert", "name": "tiny_modernbert"}


def asked(dataset, **changes):
    """Return a comparison of classifiers."""
    return ask(dataset, **{"workload": "sequence_classification", "model": MODEL, **changes})


def write_source(labels, kind="jsonl", texts=TEXTS[:30]):
    """Write the texts with these classes as a local data set; return the section `dataset`."""
    return write_columns(kind, {"text": texts, "class": labels}) | {"label": "class"}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, 100] * 10, ["9", "10", "100"]),
        (["neg", "pos", "pos "] * 10, ["neg", "pos"]),
        (["None", "NA", "nan"] * 10, ["NA", "None", "nan"]),
    ],
)
def test_every_row_keeps_its_class_and_classes_are_in_order(kind, labels, names):
    rows, manifest = download(asked(write_source(labels, kind)))
    assert [row["label"] for row in rows] == [str(label).strip() for label in labels]
    assert manifest["class_names"] == names


@pytest.mark.parametrize(
    ("first", "second", "none"), [("a", "b", None), (0.0, 1.0, None), (0, 1, -1), (0, 1, -100), ("a", "b", " \t")]
)
def test_rows_without_a_class_are_left_out_and_counted(first, second, none):
    rows, manifest = download(asked(write_source([*[first, second] * 14, second, none])))
    assert len(manifest["class_names"]) == 2
    assert (rows[29]["text"], rows[29]["fault"], rows[29]["label"]) == ("", "unlabelled", None)
    assert manifest["quarantined"] == {"unlabelled": 1}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"] * 30, "the rows have 1 classes; allowed: 2 to 10,000"),
        ([0.5, 1.5] * 15, r"the class of row 0 is '0.5' \(float\); allowed: a whole number, or a line of text"),
        (["a\nb", "c"] * 15, "class of row 0"),
        ([0, "0"] * 15, "column 'class' has values of several types; allowed: one type"),
        ([2.0**60, 1.0] * 15, r"the class of row 0 is '1.15.*e\+18' \(float\); allowed: a whole number"),
        ([*["a", None] * 15], "15 rows are without a class .*, the first is row 1 .* at most 25%.*set dataset.label"),
    ],
)
def test_what_is_no_class_is_refused_in_one_line(labels, message):
    with pytest.raises(DataError, match=message):
        download(asked(write_source(labels)))


def test_classes_of_a_data_set_that_names_its_numbers_have_these_names():
    features = Features({"text": Value("string"), "class": ClassLabel(names=["neg", "pos"])})
    rows = Dataset.from_dict({"text": TEXTS[:30], "class": [1, 0, 1, 1, -1] * 6}, features=features)
    rows.to_parquet("rows.parquet")
    rows.save_to_disk("saved")
    for source in ("rows.parquet", "saved"):
        rows, manifest = download(asked({"source": f"path:{source}", "label": "class"}))
        assert [row["label"] for row in rows[:5]] == ["pos", "neg", "pos", "pos", None]
        assert manifest["class_names"] == ["neg", "pos"]


def test_a_class_that_only_held_out_rows_have_is_refused_and_a_slice_says_which_it_has(tiny_modernbert, caplog):
    download(params := asked(write_source([*["neg"] * 20, *["pos"] * 10])))
    with pytest.raises(DataError, match="heldout 20-30: 10 rows are of the class 'pos', which no row of ranges is"):
        cut(params, tiny_modernbert)
    download(params := asked(write_source([*["neg", "pos"] * 10, *["pos"] * 10])))
    found = cut(params, tiny_modernbert)["slices"]
    assert "slice 20-30: all its rows are of the class pos" in caplog.text
    assert {part: facts["class_counts"] for part, facts in found.items()} == {
        "0-20": {"neg": 10, "pos": 10}, "20-30": {"pos": 10},
    }  # fmt: skip


def test_the_built_in_texts_have_their_package_as_class_and_are_the_same_texts(builtin_rows):
    rows, manifest = download(asked({"source": "builtin:docstrings", "label": "package"}))
    assert [row["label"] for row in rows[:12]] == list(PACKAGES)
    assert manifest["class_names"] == sorted(PACKAGES)
    assert [row["text"] for row in rows] == builtin_rows[:30]


@pytest.fixture(scope="module")
def tiny_modernbert(tmp_path_factory, builtin_rows):
    """The built-in classifier of three classes, as data/base_model has it. Read only."""
    made = tmp_path_factory.mktemp("tiny_modernbert")
    write_tiny_modernbert(made, builtin_rows, ["a", "b", "c"])
    return with_manifest(made, num_parameters=0, model_type="modernbert")


def test_a_slice_has_closed_texts_and_the_numbers_of_their_classes(tiny_modernbert):
    labels = [None if row == 3 else "bca"[row % 3] for row in range(30)]
    params = asked(write_source(labels, texts=[*TEXTS[:28], "Before </s> after", "x"]))
    download(params)
    assert cut(params, tiny_modernbert)["class_names"] == ["a", "b", "c"]
    rows, numbers = open_slice(Path("data/slices/0-20")), np.load("data/slices/0-20/labels.npy")
    kept = [row for row in range(20) if row != 3]
    assert rows.row_ids.tolist() == kept
    assert numbers.tolist() == ["abc".index("bca"[row % 3]) for row in kept]
    tokenizer = AutoTokenizer.from_pretrained(tiny_modernbert)
    for index, row in enumerate(kept):
        ids = rows.row(index, 1_000).tolist()
        assert ids == tokenizer(TEXTS[row]).input_ids
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    heldout = np.load("data/slices/20-30/tokens.npy").tolist()
    assert heldout.count(tokenizer.sep_token_id) == 10, "what looks like the closing token closed a text"


def test_a_pretrained_model_gets_its_head_once_and_the_same_in_every_run(tmp_path):
    for name in ("first", "second"):
        torch.rand(3 if name == "first" else 5)
        make_tiny_model(tmp_path / name, tied=False)
        give_head(tmp_path / name, ["a", "b", "c"])
    assert digest_file(tmp_path / "first/model.safetensors") == digest_file(tmp_path / "second/model.safetensors")

    def load():
        return AutoModelForSequenceClassification.from_pretrained(tmp_path / "first")

    model = load()
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    body = Qwen2ForCausalLM.from_pretrained(make_tiny_model(tmp_path / "body", tied=False)).model
    for (name, mine), (_, its) in zip(model.model.named_parameters(), body.named_parameters(), strict=True):
        assert torch.equal(mine, its), name
    before = model.score.weight.clone()
    give_head(tmp_path / "first", ["x", "y", "z"])  # as many classes: what it has learned stays
    assert torch.equal(load().score.weight, before)
    give_head(tmp_path / "first", ["Z", "x", "y"])  # the same classes in another order: each keeps its own
    model = load()
    assert model.config.id2label == {0: "Z", 1: "x", 2: "y"}
    assert torch.equal(model.score.weight, before[[2, 0, 1]])
