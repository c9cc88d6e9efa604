"""No pickle is ever executed: every payload touches a canary if it is, and the canary is never there."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tasks.data.row_tokenizer import load_tokenizer
from tasks.data.sources.models import store_model
from tasks.data.sources.row_store import store_rows
from tasks.params.sources import DatasetParams, ModelParams
from tasks.process.failure import DataError, ExitCode
from tests.hostile.payloads import plain, saved, saved_as_before, touching, with_entries
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.forked_ranks import last_words
from training.data.batches import open_slice
from training.model.weights import load_tensors
from training.process.failure import BadCheckpointError
from training.process.files import digest_file, digest_json, write_json
from training.record.ledger_file import LedgerFile
from training.state.receipt import RECEIPT

GOOD = {"weight": torch.arange(6.0)}


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A file that is there only if a payload ran; the current folder is an empty one beside it."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "canary"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("a tensor", "not loadable"), ("in a zip", "not loadable"), ("a program", "makes it a program"),
        ("before torch 1.6", "no zip archive"), ("a bare pickle", "no zip archive"),
    ],
)  # fmt: skip
def test_a_checkpoint_with_a_payload_is_refused_and_not_run(kind, words, canary):
    call = touching(canary)
    content = {
        "a tensor": saved({"weight": call}),
        "in a zip": with_entries(saved(GOOD), {"data.pkl": plain(call)}),
        "a program": with_entries(saved(GOOD), {"constants.pkl": plain(call)}),
        "before torch 1.6": saved_as_before({"weight": call}),
        "a bare pickle": plain(call),
    }[kind]
    Path("checkpoint.pt").write_bytes(content)
    with pytest.raises(BadCheckpointError, match=rf"checkpoint\.pt: .*{words}"):
        load_tensors(Path("checkpoint.pt"))
    assert not canary.exists()


def test_the_payloads_do_run_where_pickles_are_loaded(canary):
    pickle.loads(plain(touching(canary)))
    assert canary.exists()


def _object_array(canary):
    array = np.empty(2, dtype=object)
    array[:] = [touching(canary)] * 2
    return array


def test_arrays_of_pickles_are_refused_and_not_run(canary):
    for name in ("tokens", "offsets", "row_ids"):
        np.save(f"{name}.npy", _object_array(canary), allow_pickle=True)
    with pytest.raises(BadCheckpointError, match=r"allow_pickle|Python objects"):
        open_slice(Path())
    assert not canary.exists()


def test_a_pickle_in_the_place_of_a_ledger_is_refused_and_not_run(canary):
    ledger = Path("ledger.int32")
    ledger.write_bytes(plain(touching(canary)))
    # What ends with a whole entry is only numbers; one byte more is none.
    ledger.write_bytes(ledger.read_bytes() + bytes(-ledger.stat().st_size % 16) + b".")
    with pytest.raises(BadCheckpointError, match=r"ledger\.int32: not loadable: 1 bytes after its last entry"):
        LedgerFile(Path()).load(Path())
    assert not canary.exists()


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
@pytest.mark.parametrize("kind", ["pickle", "array", "parquet of pickles"])
def test_a_data_set_with_a_payload_is_refused_or_text_and_not_run(name, kind, canary):
    if kind == "parquet of pickles":
        pq.write_table(pa.table({"text": [plain(touching(canary))] * 3}), name)
    elif kind == "array":
        with Path(name).open("wb") as stream:
            np.save(stream, _object_array(canary), allow_pickle=True)
    else:
        Path(name).write_bytes(plain(touching(canary)))
    with pytest.raises(DataError):
        store_rows(DatasetParams(source=f"path:{name}"), 2)
    assert not canary.exists()


@pytest.mark.parametrize("kind", ["pickled weights", "code", "tokenizer code"])
def test_a_model_folder_with_a_payload_is_refused_or_loaded_without_it(kind, canary):
    model = make_tiny_model(Path("model"))
    (model / "manifest.json").unlink()
    pickled = saved({"weight": touching(canary)})
    code = f"open({str(canary)!r}, 'w')\nclass Own: pass\nOwnConfig = OwnTokenizer = Own\n"
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "__0_0.distcp", ".metadata", "vocab.pkl"):
        (model / name).write_bytes(pickled)
    for name in ("own.py", "modeling_own.py", "tokenization_own.py", "__init__.py", "setup.py"):
        (model / name).write_text(code)
    if kind == "pickled weights":
        (model / "model.safetensors").unlink()
    config = json.loads((model / "config.json").read_text())
    if kind == "code":
        auto = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", None]}
        config |= {"model_type": "own", "auto_map": auto}
    (model / "config.json").write_text(json.dumps(config))
    own = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}}
    (model / "tokenizer_config.json").write_text(json.dumps(own if kind == "tokenizer code" else {}))
    with pytest.raises(DataError):
        load_tokenizer(store_model(ModelParams(source="path:model", name="own")))
    assert not canary.exists()


def _forge_receipt(folder):
    """Make the receipt true of what is in the folder now, as whoever wrote the payload would."""
    receipt = json.loads((folder / RECEIPT).read_text())
    del receipt["digest"]
    for name in receipt["files"]:
        file = folder / name
        receipt["files"][name] = {"sha256": digest_file(file), "num_bytes": file.stat().st_size}
    write_json(folder / RECEIPT, {**receipt, "digest": digest_json(receipt)})


@pytest.mark.slow
def test_a_training_that_meets_a_payload_ends_with_3_whatever_its_receipt_says(ranks, canary, tmp_path):
    model = make_tiny_model(tmp_path / "model")
    slices = [make_slice(tmp_path / str(row), num_rows=8, first_row=row) for row in (0, 8)]
    config = make_config(tmp_path / "work", model, slices)
    ranks.train({**config, "segments": config["segments"][:1]})
    (segment,) = (tmp_path / "work" / "segments").iterdir()
    # The weights are loaded before it, by the same function.
    state = load_tensors(segment / "state.pt")
    (segment / "state.pt").write_bytes(saved({**state, "rng": touching(canary)}))
    _forge_receipt(segment)
    assert ranks.launch(config) == [ExitCode.DATA], last_words(config)
    assert "state.pt: not loadable" in last_words(config)
    assert "Traceback" not in last_words(config)
    assert not canary.exists()
