import gzip
import hashlib
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tasks.data.sources import models, row_store
from tasks.data.sources.models import refuse_not_finite
from tasks.data.sources.row_policy import MAX_CHARACTERS
from tasks.download import download_model, download_rows
from tasks.params import Params
from tasks.params.local_files import check_paths, digest_source
from tasks.params.sources import ModelParams
from tasks.process.failure import ConfigurationError, DataError
from tests.conftest import PROJECT
from tests.tasks.local_rows import ask, download, jsonl, read_defaults
from training.process.files import digest_file, digest_json

TEXTS = [f"Text {number} of the data set, in its own words." for number in range(40)]


pytestmark = pytest.mark.usefixtures("folder")


def parquet(columns: dict[str, Any], name: str = "rows.parquet") -> dict[str, str]:
    pq.write_table(pa.table(columns), name, row_group_size=7)
    return {"source": f"path:{name}"}


def with_value(value: Any, *, at: int = 7) -> list[Any]:
    return [*TEXTS[:at], value, *TEXTS[at + 1 :]]


def as_lines(texts: list[Any]) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "parquet of categories", "parquet of large strings"])
def test_a_local_file_gives_its_rows_in_order_and_no_more_than_are_needed(kind: str) -> None:
    types = {
        "parquet of categories": pa.dictionary(pa.int32(), pa.string()),
        "parquet of large strings": pa.large_string(),
    }
    if kind == "jsonl":
        source = jsonl([{"other": 1, "text": text} for text in TEXTS[:9]] + [b"", b"  "] + as_lines(TEXTS[9:]))
    else:
        source = parquet({"other": range(40), "text": pa.array(TEXTS).cast(types.get(kind, pa.string()))})
    rows, manifest = download(ask(source))
    assert rows == [{"row_id": number, "text": text, "fault": None} for number, text in enumerate(TEXTS[:30])]
    digest = hashlib.sha256(b"".join(text.encode() + b"\0" for text in TEXTS[:30])).hexdigest()
    assert (manifest["num_rows"], manifest["digest"], manifest["kind"]) == (30, digest, "path")
    assert manifest["source_digest"] == digest_file(Path(source["source"].removeprefix("path:")))
    schema = pq.read_schema("data/raw/rows.parquet")
    assert (schema.names, schema.types) == (["row_id", "text", "fault"], [pa.int64(), pa.string(), pa.string()])


BAD_TEXTS = [(None, "null"), ("", "blank"), (" \n\t\u00a0", "blank"), ("a\0b", "nul"), ("a\ud800b", "surrogate")]


@pytest.mark.parametrize(("value", "fault"), BAD_TEXTS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_row_that_is_no_text_keeps_its_place_and_is_counted(kind: str, value: Any, fault: str) -> None:
    if fault == "surrogate":
        pytest.skip("no file that is read holds one: parquet is UTF-8, and JSON with one is refused")
    texts = with_value(value)
    source = jsonl(as_lines(texts)) if kind == "jsonl" else parquet({"text": texts})
    rows, manifest = download(ask(source))
    assert rows[7] == {"row_id": 7, "text": "", "fault": fault}
    assert [row["text"] for row in rows if row["fault"] is None] == TEXTS[:7] + TEXTS[8:30]
    assert (manifest["num_rows"], manifest["quarantined"], manifest["num_cut_rows"]) == (30, {fault: 1}, 0)


def test_a_row_of_ten_megabytes_is_cut() -> None:
    rows, manifest = download(ask(jsonl(as_lines(with_value("xy" * 5_000_000)))))
    assert rows[7] == {"row_id": 7, "text": "xy" * (MAX_CHARACTERS // 2), "fault": "cut"}
    assert (manifest["quarantined"], manifest["num_cut_rows"]) == ({}, 1)


def test_a_file_with_too_many_bad_rows_is_refused_and_rows_that_no_range_names_do_not_count() -> None:
    texts = with_value(None, at=29)
    texts[3] = texts[11] = texts[35] = " "
    with pytest.raises(
        DataError, match=r"2 rows are empty or white space, the first is row 3; 1 row is null, .* row 29"
    ):
        download(ask(jsonl(as_lines(texts))))
    good = [*as_lines(TEXTS[:30]), *as_lines([None] * 20)]
    assert len(download(ask(jsonl(good)))[0]) == 30


BAD_LINES = [
    (b'{"text": "\xff"}', r"line 8, byte 10 is not UTF-8"),
    (b'{"text": "cut', r"cannot be read \(ArrowInvalid: JSON parse error: .* in row 7\)"),
    (b'{"text": "\\ud800"}', r"The surrogate pair in string is invalid. in row 7"),
    (b'["text"]', r"cannot be read"),
    (b"[" * 100_000, r"cannot be read .* in row 7\)"),
    (b'{"text": 5}', r"column 'text': row 7 is int; allowed: text"),
    (b'{"text": ["a"]}', r"row 7 is list; allowed: text"),
]


@pytest.mark.parametrize(("line", "said"), BAD_LINES, ids=[said for _, said in BAD_LINES])
def test_a_bad_line_of_a_jsonl_file_is_refused_by_its_place(line: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        download(ask(jsonl([*as_lines(TEXTS[:7]), line, *as_lines(TEXTS[8:])])))


def test_a_parquet_file_without_the_column_names_those_it_has() -> None:
    with pytest.raises(DataError, match=r"no column 'text'; the columns there are: body, id; set dataset.text_column"):
        download(ask(parquet({"id": range(40), "body": TEXTS})))
    rows, _ = download(ask({"source": "path:rows.parquet", "text_column": "body"}))
    assert rows[0]["text"] == TEXTS[0]


def test_a_parquet_string_that_is_not_utf8_is_refused() -> None:
    raw = pa.array([text.encode() for text in with_value("x")], pa.binary()).to_pylist()
    raw[7] = b"\xff\xfe"
    unchecked = pa.Array.from_buffers(pa.string(), 40, pa.array(raw, pa.binary()).buffers())
    with pytest.raises(DataError, match="can't decode byte 0xff"):
        download(ask(parquet({"text": unchecked})))


@pytest.mark.parametrize("content", [b"", b"text\nhello\n", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_a_file_that_is_no_parquet_is_refused(content: bytes) -> None:
    Path("rows.parquet").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        download(ask({"source": "path:rows.parquet"}))


@pytest.mark.parametrize("count", [0, 1, 29])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_too_few_rows_name_the_number_needed_and_the_number_there(kind: str, count: int) -> None:
    texts = TEXTS[:count]
    source = jsonl(as_lines(texts)) if kind == "jsonl" else parquet({"text": pa.array(texts, pa.string())})
    with pytest.raises(
        ConfigurationError, match=rf"need 30 rows, and {source['source']} has {count}; allowed: 0-{count}"
    ):
        download(ask(source))


def _write_as(kind: str) -> dict[str, Any]:
    """Write the texts as that kind of source; return the section `dataset`."""
    lines = [json.dumps({"text": text}) for text in TEXTS]
    texts: dict[str, str | bytes] = {
        "csv": "text\n" + "".join(f'"{text}"\n' for text in TEXTS),
        "tsv": "id\ttext\n" + "".join(f"1\t{text}\n" for text in TEXTS),
        "txt": "\n".join(TEXTS),
        "json": json.dumps([{"text": text} for text in TEXTS]),
        "jsonl.gz": gzip.compress("\n".join(lines).encode()),
        "cr.jsonl": "\r".join(lines),
        "bom.jsonl": "\ufeff" + "\n".join(lines),
        "absent.jsonl": "\n".join([*lines[:35], '{"id": 1}', *lines[36:]]),
    }
    if kind == "we[ir]d*.jsonl":
        texts[kind] = "\n".join(lines)
    if kind in texts:
        content = texts[kind]
        Path(f"a.{kind}").write_bytes(content if isinstance(content, bytes) else content.encode())
        return {"source": f"path:a.{kind}"}
    for name in ("a", "b") if kind == "configs" else ("",):
        Path("folder", name).mkdir(parents=True)
        for part in range(4):
            values = [text if name != "a" else "of another config" for text in TEXTS[part * 10 : part * 10 + 10]]
            pq.write_table(pa.table({"text": values}), Path("folder", name, f"train-{part:05d}-of-00004.parquet"))
    if kind == "configs":
        configs = "".join(f"- config_name: {name}\n  data_files: {name}/*.parquet\n" for name in "ab")
        Path("folder/README.md").write_text(f"---\nconfigs:\n{configs}---\n")
        return {"source": "path:folder", "config": "b"}
    return {"source": "path:folder"}


@pytest.mark.parametrize(
    "kind",
    [
        "csv", "tsv", "txt", "json", "jsonl.gz", "cr.jsonl", "bom.jsonl", "absent.jsonl", "we[ir]d*.jsonl", "shards",
        "configs",
    ],
)  # fmt: skip
def test_a_local_source_may_be_whatever_datasets_reads(kind: str) -> None:
    rows, manifest = download(ask(_write_as(kind)))
    assert [row["text"] for row in rows] == TEXTS[:30]
    assert manifest["config"] == ("b" if kind == "configs" else "default" if kind == "shards" else None)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (lambda: {"source": f"{_write_as('configs')['source']}"}, r"dataset.config: got None; allowed: 'a', 'b'"),
        (lambda: {**_write_as("configs"), "config": "c"}, r"dataset.config: got c; allowed: 'a', 'b'"),
        (lambda: _rename(_write_as("jsonl.gz"), "a.jsonl"), "is compressed by gzip: give it a name that ends in .gz"),
        (lambda: _two_columns(), "several columns have one name"),
    ],
)
def test_a_local_source_that_cannot_be_read_is_refused_with_the_reason(source: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        download(ask(source()))


@pytest.mark.parametrize(
    ("kind", "name"), [("shards", "fold[er]*"), ("jsonl.gz", "a[b].jsonl.gz"), ("csv", "a::b.csv")]
)
def test_a_name_that_is_a_pattern_is_refused_before_anything_is_read(kind: str, name: str) -> None:
    Path(_write_as(kind)["source"].removeprefix("path:")).rename(name)
    asked = ask({"source": f"path:{name}"})
    with pytest.raises(ValueError, match=rf"dataset.source: got '.*{re.escape(name)}'; allowed: a path without"):
        check_paths(asked.model, asked.dataset, ranges=asked.ranges, heldout=asked.heldout, base=Path())


def _rename(dataset: dict[str, Any], name: str) -> dict[str, Any]:
    Path(dataset["source"].removeprefix("path:")).rename(name)
    return {"source": f"path:{name}"}


def _two_columns() -> dict[str, Any]:
    pq.write_table(pa.table([pa.array(TEXTS), pa.array(TEXTS)], names=["text", "text"]), "two.parquet")
    return {"source": "path:two.parquet"}


def test_a_held_out_text_that_is_trained_on_in_other_case_and_white_space_is_seen() -> None:
    texts = list(TEXTS)
    texts[22], texts[23] = TEXTS[2].upper(), f"\t {TEXTS[3]}".replace(" ", "\u00a0\n") + "  "
    texts[24] = TEXTS[4].replace("e", "\uff45")  # a wide letter
    assert not {*texts[22:25]} & {*TEXTS}
    rows, manifest = download(ask(jsonl(as_lines(texts))))
    assert [row["text"] for row in rows] == texts[:30]
    assert (manifest["num_duplicate_rows"], manifest["num_heldout_rows_seen"]) == (3, 3)


def test_repeated_texts_are_counted() -> None:
    texts = [f"Text {number}" for number in random.Random(1).choices(range(70), k=100)]
    _, manifest = download(ask(jsonl(as_lines(texts)), ranges=["0-60"], heldout="60-90"))
    assert manifest["num_duplicate_rows"] == 90 - len(set(texts[:90])) > 10
    assert manifest["num_heldout_rows_seen"] == sum(text in texts[:60] for text in texts[60:90]) > 10


def test_rows_that_have_arrived_are_not_read_again_and_fewer_are_an_exact_prefix(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = []
    read_source_values = row_store.read_source_values
    monkeypatch.setattr(
        row_store, "read_source_values", lambda *args, **named: read.append(1) or read_source_values(*args, **named)
    )
    first, _ = download(ask())
    shutil.rmtree("data")
    with caplog.at_level(logging.INFO):
        fewer, manifest = download(ask(heldout="20-25"))
    assert "reused the 30 rows" in caplog.text
    assert (len(read), fewer, manifest["num_rows"]) == (1, first[:25], 25)
    more, _ = download(ask(heldout="20-35"))
    assert (len(read), more[:30]) == (2, first)


def test_a_damaged_store_is_read_anew_and_a_failed_question_loses_nothing() -> None:
    source = jsonl(as_lines(TEXTS))
    first, _ = download(ask(source))
    with pytest.raises(ConfigurationError):
        download(ask(source, heldout="20-90"))
    assert pq.read_table("data/raw/rows.parquet").num_rows == 30
    (stored,) = Path(".work/download/rows").glob("*/rows.parquet")
    assert pq.read_table(stored).num_rows == 30
    stored.write_bytes(stored.read_bytes()[:-5])
    assert download(ask(source))[0] == first


def test_a_local_file_that_changes_gives_its_new_rows() -> None:
    download(ask(jsonl(as_lines(TEXTS))))
    rows, _ = download(ask(jsonl(as_lines(TEXTS[::-1]))))
    assert rows[0]["text"] == TEXTS[-1]
    with pytest.raises(DataError, match="changed since this run began; run again"):
        download_rows(ask(jsonl(as_lines(TEXTS))), Path("data/raw"), source_digest="0" * 64)


def local_model(location: Path) -> Params:
    return ask(model={"source": f"path:{location}", "name": "local"})


@pytest.fixture
def model(folder: Path, tiny_qwen2: Path) -> Path:
    """A copy of the built-in model as a folder of the user's."""
    return Path(shutil.copytree(tiny_qwen2, folder / "model", ignore=shutil.ignore_patterns("manifest.json")))


def test_a_local_model_arrives_without_pickles_and_code_and_with_facts(model: Path) -> None:
    for name in ("pytorch_model.bin", "modeling.py", "training_args.pt", "notes.txt", "optimizer.safetensors"):
        (model / name).write_bytes(b"not wanted")
    download_model(local_model(model), Path("data/base_model"))
    arrived = {file.name for file in Path("data/base_model").iterdir()}
    taken = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert arrived == taken | {"manifest.json"}
    manifest = json.loads(Path("data/base_model/manifest.json").read_text())
    assert manifest["files"] == {name: digest_file(model / name) for name in sorted(taken)}
    assert manifest["digest"] == digest_json(manifest["files"])
    facts = [manifest[key] for key in ("kind", "model_type", "num_parameters", "is_random_weights", "commit")]
    assert facts == ["path", "qwen2", 1_001_600, False, None]
    # The user's own files are not tied to outputs that DVC makes read-only.
    assert {file.stat().st_nlink for file in model.iterdir()} == {1}
    assert {file.stat().st_nlink for file in Path("data/base_model").iterdir()} == {2}


@pytest.mark.slow
def test_the_builtin_model_says_that_its_weights_are_random_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.tiny_models, "NUM_TOKENIZER_ROWS", 300)
    download_model(ask(), Path("data/base_model"))
    manifest = json.loads(Path("data/base_model/manifest.json").read_text())
    assert manifest["is_random_weights"] is True
    assert manifest["label"] == "tiny-qwen2: Qwen2 architecture with random weights, 1.0 M parameters (built-in)"
    shutil.rmtree("data")
    monkeypatch.setattr(models, "store_rows", lambda *_: pytest.fail("made again"))
    download_model(ask(), Path("data/base_model"))
    assert json.loads(Path("data/base_model/manifest.json").read_text()) == manifest


@pytest.mark.slow
def test_a_model_from_scratch_has_config_and_tokenizer_of_its_source_and_new_weights(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    # The built-in model has been drawn in the same way: this one has learned something since.
    learned = {name: value + 0.5 for name, value in load_file(model / "model.safetensors").items()}
    save_file(learned, model / "model.safetensors", metadata={"format": "pt"})
    source = ModelParams(source=f"path:{model}", name="own")
    scratch = source.model_copy(update={"weights": "random"})
    kept, drawn = models.store_model(source), models.store_model(scratch)
    facts = json.loads((drawn / "manifest.json").read_text())
    assert facts["is_random_weights"] is True
    assert facts["label"].endswith(", random weights")
    assert (drawn / "tokenizer.json").read_bytes() == (kept / "tokenizer.json").read_bytes()
    before, after = (load_file(folder / "model.safetensors") for folder in (kept, drawn))
    assert {name: value.shape for name, value in after.items()} == {name: value.shape for name, value in before.items()}
    assert not any(bool((after[name] == value).all()) for name, value in before.items() if value.ndim == 2)
    for file in model.glob("*.safetensors"):
        file.unlink()
    # The weights of the source are no part of it.
    assert models.store_model(scratch) == drawn
    hostile = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": 10**9}
    (model / "config.json").write_text(json.dumps(hostile))
    with pytest.raises(DataError, match=r"num_hidden_layers is 1000000000"):
        models.store_model(scratch)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_no_numbers_are_refused_though_no_token_may_use_them(model: Path, value: str) -> None:
    from safetensors.torch import load_file, save_file

    name, file = "model.embed_tokens.weight", model / "model.safetensors"
    weights = load_file(file)
    weights[name][-3:, 0] = float(value)
    save_file(weights, file, metadata={"format": "pt"})
    says = f"model.safetensors: {name} holds 3 values that are no finite numbers; allowed: finite ones, such as 0"
    with pytest.raises(DataError, match=says):
        models.store_model(ModelParams(source=f"path:{model}", name="own"))


def test_weights_by_other_names_may_be_infinite_as_masks_are_and_not_be_no_numbers(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    for name, is_refused in (("wte.weight", True), ("mask", False)):
        weights = load_file(model / "model.safetensors")
        weights[name] = torch.tensor([float("nan" if is_refused else "-inf")])
        (model / "more").mkdir(exist_ok=True)
        save_file(weights, model / "more/model.safetensors")
        if is_refused:
            with pytest.raises(DataError, match=r"wte\.weight holds 1 values that are no finite numbers"):
                refuse_not_finite(model / "more", "here", parameters=["model.embed_tokens.weight"])
        else:
            refuse_not_finite(model / "more", "here", parameters=["model.embed_tokens.weight"])


def test_a_model_with_pickled_weights_alone_is_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"only pytorch_model.bin, and pickled weights are refused; write them with tr"):
        download_model(local_model(model), Path("data/base_model"))


BROKEN = [
    ("model.safetensors", b"", "model.safetensors: cannot be used"),
    ("config.json", b"{", "config.json: cannot be used"),
    ("config.json", b'{"model_type": "resnet"}', "config.json: cannot be used"),
    (
        "model.safetensors.index.json",
        b'{"weight_map": {"a": "model-2.safetensors"}}',
        "'model-2.safetensors' is missing",
    ),
]


@pytest.mark.parametrize(("name", "content", "said"), BROKEN, ids=[f"{name} {said}" for name, _, said in BROKEN])
def test_a_broken_model_file_is_refused_by_name(model: Path, name: str, content: bytes, said: str) -> None:
    (model / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        download_model(local_model(model), Path("data/base_model"))
    assert len(str(caught.value)) < 700
    assert not Path("data/base_model").exists()


def test_the_code_of_a_model_folder_is_never_run(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "own.py").write_text("open('canary', 'w')\n")
    with pytest.raises(DataError, match=r"config\.json: cannot be used"):
        download_model(local_model(model), Path("data/base_model"))
    assert not list(Path().rglob("canary"))


def test_rows_that_change_while_they_are_read_are_not_stored_as_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    params = ask(jsonl(as_lines(TEXTS)))
    before = Path("rows.jsonl").read_bytes()
    read = row_store.read_source_values

    def read_while_somebody_writes(*arguments: Any, **named: Any) -> Any:
        Path("rows.jsonl").write_bytes(before.replace(b"Text 3 ", b"Word 3 "))
        yield from read(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(row_store, "read_source_values", read_while_somebody_writes)
        with pytest.raises(DataError, match=r"dataset\.source path:rows\.jsonl: changed while it was read; run again"):
            download_rows(params, Path("data/raw"), source_digest=None)
    Path("rows.jsonl").write_bytes(before)
    rows, _ = download(params)
    assert [row["text"] for row in rows] == TEXTS[:30]


def test_a_model_that_changes_while_it_is_copied_is_not_stored_as_what_it_was(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (model / "config.json").read_bytes()
    copy = shutil.copyfile

    def copy_while_somebody_writes(source: Path, target: Path) -> None:
        (model / "config.json").write_bytes(before + b"\n")
        copy(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", copy_while_somebody_writes)
        with pytest.raises(DataError, match="changed while it was read; run again"):
            download_model(local_model(model), Path("data/base_model"))
    (model / "config.json").write_bytes(before)
    download_model(local_model(model), Path("data/base_model"))
    assert Path("data/base_model/config.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(("section", "changed"), [("dataset", "rows.jsonl"), ("model", "model/config.json")])
def test_a_local_source_that_changed_since_the_run_began_fails_the_stage_in_one_line(
    section: str, changed: str, model: Path
) -> None:
    dataset = jsonl(as_lines(TEXTS))
    params = {**read_defaults(), "dataset": dataset, "ranges": ["0-20"], "heldout": "20-30"}
    params["model"] = {"source": "path:model", "name": "local"}
    Path("params.yaml").write_text(json.dumps(params))  # JSON is YAML
    places = {"dataset": Path("rows.jsonl"), "model": model}
    Path("sources.json").write_text(
        json.dumps({name: {"digest": digest_source(place)} for name, place in places.items()})
    )
    with Path(changed).open("a") as file:
        file.write("\n")
    ended = subprocess.run(
        [sys.executable, "-m", "tasks.download", "--sources=sources.json", "--raw=raw", "--base-model=base_model"],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        f"download: {section}.source path:{places[section].name}: changed since this run began; run again"
    )
