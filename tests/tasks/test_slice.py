import logging
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from tasks.data.row_tokenizer import load_tokenizer
from tasks.data.sources.row_policy import MAX_CHARACTERS, judge_value
from tasks.data.sources.row_store import _SCHEMA, _make_table
from tasks.params.sources import RowRange
from tasks.process.failure import ConfigurationError, DataError
from tasks.records.manifests import RawManifest
from tasks.slice import check_extent
from tests.tasks.local_rows import RAW, ask, cut
from tests.tasks.reporting.comparison import edit_json
from tests.tiny import with_manifest
from training.data.batches import open_slice
from training.process.files import digest_file

SPECIAL = "Before <|endoftext|> after, and <|im_end|> as well."


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def texts(builtin_rows):
    """Rows of many kinds: real ones, a short one, other scripts, and one that names special tokens."""
    return [*builtin_rows[:45], "a", "Größe 日本語 \U0001f600", SPECIAL, *builtin_rows[45:60]]


def write_rows(texts):
    """Write data/raw/ as the stage `download` does."""
    file = RAW / "rows.parquet"
    RAW.mkdir(parents=True, exist_ok=True)
    rows = [judge_value(text) for text in texts]
    pq.write_table(_make_table(0, rows, _SCHEMA), file, row_group_size=13)
    RawManifest(
        source="builtin:docstrings", kind="builtin", revision=None, commit=None, split=None, label="", digest="",
        license=None, text_column="text", num_rows=len(rows), rows_sha256=digest_file(file),
    ).write(file.parent)  # fmt: skip
    return file


@pytest.fixture
def run_stage(tiny_qwen2):
    """Cut these ranges and return the manifest."""
    return lambda *ranges, heldout: cut(ask(ranges=list(ranges), heldout=heldout), tiny_qwen2)


def rows_of(part):
    """Return row id -> tokens, read as a training process reads them."""
    source = open_slice(Path("data/slices", part))
    assert (source.tokens.dtype, source.offsets.dtype, source.row_ids.dtype) == (np.int32, np.int64, np.int64)
    return {int(row): source.row(index, 10**7).tolist() for index, row in enumerate(source.row_ids)}


def test_every_row_is_its_tokens_and_one_end_of_text_under_its_own_id(run_stage, tiny_qwen2, texts):
    write_rows(texts)
    manifest = run_stage("0-20", "20-41", heldout="41-60")
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen2)
    by_hand = [
        [*tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids, tokenizer.eos_token_id]
        for text in texts
    ]
    for part, start, end in (("0-20", 0, 20), ("20-41", 20, 41), ("41-60", 41, 60)):
        assert rows_of(part) == {row: by_hand[row] for row in range(start, end)}
        assert manifest["slices"][part]["num_rows"] == end - start
        assert manifest["slices"][part]["num_tokens"] == sum(len(by_hand[row]) for row in range(start, end))
    assert list(manifest["slices"]) == ["0-20", "20-41", "41-60"]
    assert (manifest["heldout"], manifest["workload"], manifest["vocab_size"]) == ("41-60", "causal_lm", 2048)
    assert manifest["eos_token_id"] == tokenizer.eos_token_id


def test_rows_that_are_no_text_are_in_no_slice_and_counted(run_stage, texts):
    rows = [*texts]
    rows[3], rows[4], rows[22], rows[45] = None, " ", "a\0b", "a\ud800b"
    rows[25] = "x " * MAX_CHARACTERS
    write_rows(rows)
    facts = run_stage("0-20", "20-41", heldout="41-60")["slices"]
    assert [one["quarantined"] for one in facts.values()] == [{"null": 1, "blank": 1}, {"nul": 1}, {"surrogate": 1}]
    assert [one["num_cut_rows"] for one in facts.values()] == [0, 1, 0]
    assert [one["num_special_token_rows"] for one in facts.values()] == [0, 0, 1]
    assert list(rows_of("0-20")) == [row for row in range(20) if row not in (3, 4)]
    assert list(rows_of("20-41")) == [row for row in range(20, 41) if row != 22]
    assert facts["0-20"]["num_rows"] == 18
    with pytest.raises(DataError, match="slice 3-5: every row of it is left out"):
        run_stage("3-5", heldout="41-60")


def test_only_what_is_new_changed_or_damaged_is_tokenised(run_stage, texts, caplog):
    caplog.set_level(logging.INFO)

    def run(*ranges):
        caplog.clear()
        slices = run_stage(*ranges, heldout="40-50")["slices"]
        return slices, {part for part in slices if f"slice {part}: made of" in caplog.text}

    write_rows(texts[:50])
    before = run("0-20")[0]
    shutil.rmtree("data/slices")  # as DVC does before it runs a stage
    write_rows([*texts[:25], "a row between the slices changed", *texts[26:]])
    after, made = run("0-20", "50-60")
    assert (before.items() <= after.items(), made) == (True, {"50-60"})
    rows = rows_of("0-20")
    for stored in Path(".work/slices").glob("*/tokens.npy"):
        stored.write_bytes(stored.read_bytes()[:-4])
    assert run("0-20", "50-60") == (after, {*after})
    assert rows_of("0-20") == rows
    write_rows([texts[0], "another row", *texts[2:]])
    changed, made = run("0-20")
    assert (changed["0-20"]["digest"] != after["0-20"]["digest"], made) == (True, {"0-20"})


def test_rows_that_are_not_what_was_downloaded_are_not_sliced_and_taken_out_of_use(run_stage, texts):
    file = write_rows(texts)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"rows.parquet: is damaged: its sha256 is .*; it was removed: run again"):
        run_stage("0-20", heldout="40-50")
    assert not file.exists()
    assert not Path("data/slices").exists()


def test_slices_that_end_beyond_the_rows_are_refused():
    # Past the schema, which refuses most of these itself.
    params = ask().model_copy(update={"heldout": RowRange(start=59, end=61)})
    with pytest.raises(ConfigurationError, match="row 61 is beyond the 60 rows of builtin:docstrings; allowed: 0-60"):
        check_extent(params, 60)


def test_an_id_beyond_the_embedding_is_refused_with_its_row(tiny_qwen2, folder, texts):
    model = Path(shutil.copytree(tiny_qwen2, folder / "model"))
    edit_json(model / "config.json", vocab_size=300)
    tokenizer = load_tokenizer(model)
    assert len(tokenizer.rows(["a"], row_ids=[5])[0]) == 2
    with pytest.raises(DataError, match=r"row 6: the tokenizer gives id \d+, and the model's embedding has 300 rows"):
        tokenizer.rows(["a", texts[0]], row_ids=[5, 6])


def test_a_tokenizer_is_another_with_another_config_which_names_its_class(tiny_qwen2, folder):
    model = Path(shutil.copytree(tiny_qwen2, folder / "model"))
    edit_json(model / "config.json", tokenizer_class="Qwen2Tokenizer")
    again = with_manifest(model, num_parameters=0, model_type="qwen2")
    assert load_tokenizer(again).digest != load_tokenizer(tiny_qwen2).digest


def test_a_tokenizer_that_turns_text_into_special_tokens_is_refused(tiny_qwen2):
    tokenizer = load_tokenizer(tiny_qwen2)
    tokenizer.backend.encode_special_tokens = False
    with pytest.raises(DataError, match="row 3: the tokenizer turns part of the text into a special token"):
        tokenizer.rows([SPECIAL], row_ids=[3])
