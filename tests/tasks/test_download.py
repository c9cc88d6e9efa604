import gzip
import hashlib
import json
import logging
import re
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

from tasks.data.sources import models, row_store
from tasks.data.sources.models import refuse_not_finite
from tasks.data.sources.row_policy import MAX_CHARACTERS
from tasks.download import download_model, download_rows
from tasks.params.local_files import check_paths
from tasks.params.sources import ModelParams
from tasks.process.failure import ConfigurationError, DataError
from tests.architecture.test_pages import find_snippets
from tests.tasks.local_rows import RAW, TEXTS, ask, download, jsonl, write_columns
from training.model.weights import without_deepspeed
from training.process.files import digest_file, digest_json

BASE_MODEL = Path("data/base_model")
PACKED = gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)
pytestmark = pytest.mark.usefixtures("folder")


def as_lines(texts):
    return [{"text": text} for text in texts]


LINES = [json.dumps(line).encode() for line in as_lines(TEXTS)]


def test_a_local_file_gives_its_rows_in_order_and_no_more_than_are_needed():
    lines = [*({"other": 1, "text": text} for text in TEXTS[:9]), b"", b"  ", *as_lines(TEXTS[9:])]
    rows, manifest = download(ask(jsonl(lines)))
    assert rows == [{"row_id": number, "text": text, "fault": None} for number, text in enumerate(TEXTS[:30])]
    digest = hashlib.sha256(b"".join(text.encode() + b"\0" for text in TEXTS[:30])).hexdigest()
    assert (manifest["num_rows"], manifest["digest"]) == (30, digest)
    assert manifest["source_digest"] == digest_file(Path("rows.jsonl"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("fault", "value"),
    [
        ("null", None),
        ("blank", " \n\t\u00a0"),
        ("nul", "a\0b"),
        pytest.param("cut", "xy" * 5_000_000, id="ten megabytes"),
    ],
)
def test_a_row_that_is_no_text_keeps_its_place_and_is_counted(kind, fault, value):
    rows, manifest = download(ask(write_columns(kind, {"text": [*TEXTS[:7], value, *TEXTS[8:]]})))
    assert rows[7] == {"row_id": 7, "text": value[:MAX_CHARACTERS] if fault == "cut" else "", "fault": fault}
    assert [row["text"] for row in rows if row["fault"] is None] == TEXTS[:7] + TEXTS[8:30]
    counted = ({}, 1) if fault == "cut" else ({fault: 1}, 0)
    assert (manifest["num_rows"], manifest["quarantined"], manifest["num_cut_rows"]) == (30, *counted)


def test_a_file_with_too_many_bad_rows_is_refused_and_rows_that_no_range_names_do_not_count():
    bad = {3: " ", 11: " ", 35: " ", 29: None}
    says = r"2 rows are empty or white space, the first is row 3; 1 row is null, .* row 29"
    with pytest.raises(DataError, match=says):
        download(ask(jsonl(as_lines(bad.get(number, text) for number, text in enumerate(TEXTS)))))
    assert len(download(ask(jsonl(as_lines([*TEXTS[:30], *[None] * 20]))))[0]) == 30


def _write(name, content):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return {"source": f"path:{name}"}


def _write_as(kind):
    """Write the texts as that kind of source; return the section `dataset`."""
    lines = b"\n".join(LINES)
    texts = {
        "csv": "text\n" + "".join(f'"{text}"\n' for text in TEXTS),
        "jsonl.gz": gzip.compress(lines),
        # As Windows and old programs write lines.
        "cr.jsonl": b"\xef\xbb\xbf" + b"\r".join(LINES),
        "absent.jsonl": b"\n".join([*LINES[:35], b'{"id": 1}', *LINES[36:]]),
        "we[ir]d*.jsonl": lines,
        "json": b"[" + b", ".join(LINES) + b"]",
        "txt": "\ufeff" + "\r\n".join(TEXTS),
        "JSONL": lines,
    }
    if kind in texts:
        return _write(f"a.{kind}", texts[kind])
    if kind == "saved":
        for texts, number in ((["of another"] * 40, 4), (TEXTS, 3)):
            Dataset.from_dict({"text": texts}).save_to_disk("folder", num_shards=number)
        return _write("folder/cache-0.arrow", "of another") and {"source": "path:folder"}
    # Of types that other programs write.
    names, of_type = ("",), pa.large_string()
    if kind == "configs":
        names, of_type = ("a", "b"), pa.dictionary(pa.int32(), pa.string())
    for name in names:
        Path("folder", name).mkdir(parents=True)
        for part in range(4):
            values = [text if name != "a" else "of another config" for text in TEXTS[part * 10 : part * 10 + 10]]
            table = pa.table({"text": pa.array(values).cast(of_type)})
            pq.write_table(table, Path("folder", name, f"train-{part:05d}-of-00004.parquet"))
    if kind == "shards":
        return {"source": "path:folder"}
    configs = "".join(f"- config_name: {name}\n  data_files: {name}/*.parquet\n" for name in names)
    Path("folder/README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return {"source": "path:folder", "config": "b"}


@pytest.mark.parametrize(
    "kind",
    "csv json txt jsonl.gz cr.jsonl absent.jsonl we[ir]d*.jsonl JSONL shards saved configs".split(),  # noqa: SIM905
)
def test_a_local_source_may_be_whatever_datasets_reads(kind):
    rows, manifest = download(ask(_write_as(kind)))
    assert [row["text"] for row in rows] == TEXTS[:30]
    assert manifest["config"] == {"configs": "b", "shards": "default"}.get(kind)


def _break(line):
    return b"\n".join([*LINES[:7], line, *LINES[8:]])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", _break(b'{"text": "\xff"}'), r"line 8, byte 10 is not UTF-8"),
        ("a.jsonl", _break(b'{"text": "cut'), r"cannot be read \(ArrowInvalid: JSON parse error: .* in row 7\)"),
        ("a.jsonl", _break(b"[" * 100_000), r"cannot be read .* in row 7\)"),
        ("a.jsonl", _break(b'{"text": 5}'), r"column 'text': row 7 is int; allowed: text"),
        ("a.jsonl", "", r"need 30 rows, and path:a\.jsonl has 0; allowed: 0-0"),
        ("a.jsonl", b"\n".join(LINES[:29]), r"need 30 rows, and path:a\.jsonl has 29; allowed: 0-29"),
        ("a.jsonl", PACKED, "is compressed by gzip: give it a name that ends in .gz"),
        ("a.json", json.dumps(as_lines([*TEXTS, 5])), "column 'text' has values of several types"),
        ("a.jsonl", "version https://git-lfs.github.com/spec/v1\noid", "Git LFS has in its place"),
        ("a.jsonl.gz", PACKED[:-20], "cannot be read"),
        ("a.csv", "text,title\n" + "a,b,\n" * 40, "rows have more fields than the first line"),
        ("a.csv", "id; text\n" + "1; a\n" * 40, "the columns there are: 'id; text'; set"),
    ],
    ids=len,
)
def test_a_local_file_that_cannot_be_read_is_refused_with_the_reason(name, content, said):
    with pytest.raises(ValueError, match=said):
        download(ask(_write(name, content)))


def test_parts_that_are_not_named_or_not_there_are_refused_with_the_reason():
    pq.write_table(pa.table([pa.array(TEXTS)] * 2, names=["text"] * 2), "two.parquet")
    _write_as("configs")
    Path("folder").rename("configs")
    saved = _write_as("saved")
    Path("folder/data-00001-of-00003.arrow").unlink()
    for source, said in (
        ({"source": "path:configs", "config": "c"}, r"dataset.config: got c; allowed: 'a', 'b'"),
        ({"source": "path:configs"}, "allowed: 'a', 'b'"),
        ({"source": "path:two.parquet"}, "several columns have one name"),
        (saved, "state.json names 'data-00001-of-00003.arrow', which is not beside it"),
    ):
        with pytest.raises(ValueError, match=said):
            download(ask(source))


def test_a_folder_gives_the_split_that_is_named_and_others_have_none(caplog):
    for split, texts in (("train", ["of another"] * 40), ("test", TEXTS)):
        Path("folder").mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": texts}), f"folder/{split}.parquet")
    download(ask({"source": "path:folder"}))
    rows, manifest = download(ask({"source": "path:folder", "split": "test"}))
    assert ([row["text"] for row in rows], manifest["split"]) == (TEXTS[:30], "test")
    rows, _ = download(ask({"source": "path:folder", "split": "test+train"}, ranges=["30-60"]))
    assert [row["text"] for row in rows] == [*TEXTS, *["of another"] * 20]
    assert "reused" not in caplog.text
    with pytest.raises(ValueError, match=r"dataset\.split: got 'dev'; .* splits: \["):
        download(ask({"source": "path:folder", "split": "dev"}))
    assert download(ask({"source": "path:folder/test.parquet"}))[1]["split"] is None


@pytest.mark.parametrize("kind", ["saved", "csv"])
def test_a_split_of_a_source_that_has_none_is_refused(kind):
    with pytest.raises(ValueError, match=r"with dataset\.config None and dataset\.split train\+test; allowed"):
        check_paths(ask({**_write_as(kind), "split": "train+test"}), Path())


@pytest.mark.parametrize(("kind", "name"), [("shards", "fold[er]*"), ("csv", "a::b.csv")])
def test_a_name_that_is_a_pattern_is_refused_before_anything_is_read(kind, name):
    Path(_write_as(kind)["source"].removeprefix("path:")).rename(name)
    with pytest.raises(ValueError, match=rf"dataset.source: got '.*{re.escape(name)}'; allowed: a path without"):
        check_paths(ask({"source": f"path:{name}"}), Path())


def test_texts_are_counted_that_are_repeated_or_held_out_in_other_case_and_white_space():
    wide = TEXTS[4].replace("e", "\uff45")
    same = [TEXTS[2].upper(), f"\t {TEXTS[3]}".replace(" ", "\u00a0\n") + "  ", wide]
    assert not {*same} & {*TEXTS}
    texts = [*TEXTS[:9], *TEXTS[2:3] * 2, *TEXTS[11:22], *same, *TEXTS[25:]]
    rows, manifest = download(ask(jsonl(as_lines(texts))))
    assert [row["text"] for row in rows] == texts[:30]
    assert (manifest["num_duplicate_rows"], manifest["num_heldout_rows_seen"]) == (5, 3)


def test_rows_that_have_arrived_are_read_again_only_if_there_are_others_or_more_or_they_are_damaged(caplog):
    caplog.set_level(logging.INFO)
    source = jsonl(as_lines(TEXTS))

    def get(heldout):
        caplog.clear()
        rows, manifest = download(ask(source, heldout=heldout))
        return rows, manifest["num_rows"], "reused the 30 rows" in caplog.text

    first = get("20-30")[0]
    shutil.rmtree("data")
    assert get("20-25") == (first[:25], 25, True)
    with pytest.raises(ConfigurationError):
        get("20-90")
    assert get("20-30") == (first, 30, True)
    (stored,) = Path(".work/download/rows").glob("*/rows.parquet")
    stored.write_bytes(stored.read_bytes()[:-5])
    assert get("20-30") == (first, 30, False)
    more, _, is_reused = get("20-35")
    assert (more[:30], is_reused) == (first, False)
    jsonl(as_lines(TEXTS[::-1]))
    assert get("20-30")[0][0]["text"] == TEXTS[-1]


def test_a_local_file_that_has_changed_since_the_run_began_is_refused():
    with pytest.raises(DataError, match="changed since this run began; run again"):
        download_rows(ask(jsonl(as_lines(TEXTS))), RAW, source_digest="0" * 64)


@pytest.fixture
def model(folder, tiny_qwen2):
    """A copy of the built-in model as a folder of the user's."""
    return Path(shutil.copytree(tiny_qwen2, folder / "model", ignore=shutil.ignore_patterns("manifest.json")))


def _download_model():
    download_model(ask(model={"source": "path:model", "name": "local"}), BASE_MODEL)


def _store(**changes):
    return models.store_model(ModelParams(source="path:model", name="own", **changes))


def _edit_weights(file, change):
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def test_a_local_model_arrives_without_pickles_and_code_and_with_facts(model):
    for name in ("pytorch_model.bin", "modeling.py", "training_args.pt", "notes.txt", "optimizer.safetensors"):
        (model / name).write_bytes(b"not wanted")
    _download_model()
    taken = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in BASE_MODEL.iterdir()} == taken | {"manifest.json"}
    manifest = json.loads((BASE_MODEL / "manifest.json").read_text())
    assert manifest["files"] == {name: digest_file(model / name) for name in sorted(taken)}
    assert manifest["digest"] == digest_json(manifest["files"])
    assert (manifest["model_type"], manifest["num_parameters"]) == ("qwen2", 1_001_600)
    # The user's own files are not tied to outputs that DVC makes read-only.
    assert {file.stat().st_nlink for file in model.iterdir()} == {1}


@pytest.mark.slow
def test_a_model_that_is_a_pickle_is_taken_once_it_is_written_anew_as_the_page_says(model, project):
    (typed,) = [text for _, text in find_snippets(project)["bash"] if ".save_pretrained" in text]
    weights = load_file(model / "model.safetensors")
    torch.save(weights, model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    *python, code = shlex.split(typed.replace("opt-125m-safe", "new").replace("opt-125m", "model"))
    assert python == [".venv/bin/python", "-c"]
    with without_deepspeed():
        exec(code, {})
    model.rename("pickled")
    Path("new").rename(model)
    _download_model()
    found = load_file(BASE_MODEL / "model.safetensors")
    assert all(torch.equal(found[name], weights[name]) for name in {*found, *weights})


@pytest.mark.slow
def test_a_model_from_scratch_has_config_and_tokenizer_of_its_source_and_new_weights(model):
    weights = model / "model.safetensors"
    # The built-in model has been drawn in the same way: this one has learned something since.
    _edit_weights(weights, lambda held: held.update({name: value + 0.5 for name, value in held.items()}))
    kept, drawn = _store(), _store(weights="random")
    assert json.loads((drawn / "manifest.json").read_text())["is_random_weights"] is True
    assert (drawn / "tokenizer.json").read_bytes() == (kept / "tokenizer.json").read_bytes()
    before, after = (load_file(folder / "model.safetensors") for folder in (kept, drawn))
    assert {name: value.shape for name, value in after.items()} == {name: value.shape for name, value in before.items()}
    assert not any(bool((after[name] == value).all()) for name, value in before.items() if value.ndim == 2)
    # The weights of the source are no part of it.
    weights.unlink()
    assert _store(weights="random") == drawn


EMBEDDING = "model.embed_tokens.weight"


def test_weights_that_are_no_numbers_are_refused_though_no_token_may_use_them(model):
    _edit_weights(model / "model.safetensors", lambda held: held[EMBEDDING][-3:, 0].fill_(float("nan")))
    says = f"model.safetensors: {EMBEDDING} holds 3 values that are no finite numbers; allowed: finite ones, such as 0"
    with pytest.raises(DataError, match=says):
        _store()


def test_weights_by_other_names_may_be_infinite_as_masks_are_and_not_be_no_numbers(tmp_path):
    def refuse(**weights):
        save_file({name: torch.tensor([float(value)]) for name, value in weights.items()}, tmp_path / "a.safetensors")
        refuse_not_finite(tmp_path, "here", parameters=[EMBEDDING])

    refuse(mask="-inf")
    for name, value in (("wte", "nan"), (EMBEDDING, "inf")):
        with pytest.raises(DataError, match=rf"{name} holds 1 values that are no finite numbers"):
            refuse(**{name: value})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", "", "model.safetensors: cannot be used"),
        ("config.json", '{"model_type": "resnet"}', "config.json: cannot be used"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "model-2.safetensors"}}', "2.safetensors' is missing"),
    ],
)
def test_a_broken_model_file_is_refused_by_name(model, name, content, said):
    (model / name).write_text(content)
    with pytest.raises(DataError, match=said):
        _download_model()
    assert not BASE_MODEL.exists()


def test_rows_that_change_while_they_are_read_are_not_stored_as_what_they_were(monkeypatch):
    params, read = ask(jsonl(as_lines(TEXTS))), row_store.read_source_values
    before = Path("rows.jsonl").read_bytes()

    def read_while_somebody_writes(*arguments, **named):
        Path("rows.jsonl").write_bytes(before.replace(b"Text 3 ", b"Word 3 "))
        yield from read(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(row_store, "read_source_values", read_while_somebody_writes)
        with pytest.raises(DataError, match=r"dataset\.source path:rows\.jsonl: changed while it was read; run again"):
            download(params)
    Path("rows.jsonl").write_bytes(before)
    assert [row["text"] for row in download(params)[0]] == TEXTS[:30]


def test_a_model_that_changes_while_it_is_copied_is_not_stored_as_what_it_was(model, monkeypatch):
    config, copy = model / "config.json", shutil.copyfile
    before = config.read_bytes()

    def copy_while_somebody_writes(source, target):
        config.write_bytes(before + b"\n")
        copy(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", copy_while_somebody_writes)
        with pytest.raises(DataError, match="changed while it was read; run again"):
            _download_model()
    config.write_bytes(before)
    _download_model()
    assert (BASE_MODEL / "config.json").read_bytes() == before
