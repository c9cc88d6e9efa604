import numpy as np
import pytest

from benchmarks.growth.finished import seal_segment
from tasks.process.failure import DataError
from tests.tasks.reporting.comparison import edit_json, edit_ledger, edit_segment, segment_folder


@pytest.mark.parametrize(
    "name",
    [
        "raw/manifest.json",
        "machine.json",
        "slices/0-8/row_ids.npy",
        "slices/8-16/offsets.npy",
        "runs/2proc/run.json",
        "runs/2proc/segments/0-8-epoch-1/segment.json",
        "runs/2proc/segments/0-8-epoch-1/steps.jsonl",
        "runs/2proc/segments/0-8-epoch-1/ledger.int32",
        "evaluation/evaluation.json",
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_missing_or_damaged_file_is_named_in_one_line(tmp_path, name, damage, collect):
    path = tmp_path / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(DataError, match=rf"{name}.*`dvc repro`"):
        collect()


@pytest.mark.parametrize(
    ("seq_len", "workload", "number"),
    [
        # Of 4, 5, 6, 4, 5, 6, 4 and 5 tokens.
        (128, "causal_lm", 31),
        (5, "causal_lm", 29),
        (1, "causal_lm", 0),
        (5, "sequence_classification", 37),
        (5, "image_classification", 8),
    ],
)
def test_tokens_to_learn_leave_out_the_first_of_each_row_and_what_is_cut(seq_len, workload, number, read):
    assert read().slices["0-8"].count_units(seq_len, workload=workload) == number


def test_a_ledger_that_is_not_as_it_was_written_is_refused(tmp_path, collect):
    path = segment_folder(tmp_path, "2proc") / "ledger.int32"
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"2proc/.*ledger\.int32.*ValueError: sha256 is "):
        collect()
    path.write_bytes(content[:-4])
    seal_segment(path.parent)
    with pytest.raises(DataError, match=r"2proc/.*ledger\.int32.*ValueError: cannot reshape array of size 31"):
        collect()


@pytest.mark.parametrize("column", ["rank", "step", "row_id", "num_tokens"])
def test_a_ledger_with_numbers_below_0_is_refused(tmp_path, column, collect):
    edit_ledger(tmp_path, "2proc", lambda columns: columns.update({column: columns[column] - 8}))
    with pytest.raises(DataError, match=rf"2proc/.*ledger\.int32.*ValueError: {column} is -"):
        collect()


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"files": []}', b'{"files": {"steps.jsonl": {}}}'])
def test_a_ledger_that_no_receipt_vouches_for_is_refused(tmp_path, content, collect):
    receipt = segment_folder(tmp_path, "2proc") / "receipt.json"
    receipt.unlink() if content is None else receipt.write_bytes(content)
    with pytest.raises(DataError, match=r"2proc/segments/0-8-epoch-1/(receipt\.json: |ledger\.int32: KeyError)"):
        collect()


@pytest.mark.parametrize("name", ["segment.json", "steps.jsonl"])
def test_what_the_ranks_wrote_is_not_believed_once_it_was_edited(tmp_path, name, collect):
    path = segment_folder(tmp_path, "2proc") / name
    path.write_text(path.read_text().replace("4.0", "2.0"))
    with pytest.raises(DataError, match=rf"2proc/segments/0-8-epoch-1/{name}.*ValueError: sha256 is .*, its receipt"):
        collect()


def test_the_segment_of_another_training_is_refused_whole_as_it_is(tmp_path, read):
    edit_segment(tmp_path, "2proc", fingerprint="ab" * 32)
    with pytest.raises(DataError, match=r"segment\.json: ValueError: fingerprint is (ab)+, run\.json names (f1)+: ano"):
        read()


def test_an_array_that_ends_elsewhere_than_it_says_is_refused(tmp_path, collect):
    path = tmp_path / "slices/0-8/row_ids.npy"
    whole = path.read_bytes()
    for content in (whole[:-8], whole + bytes(8)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"row_ids.npy: ValueError: (ends within|goes on after) its 8 numbers"):
            collect()


def test_offsets_that_fall_are_refused(tmp_path, read):
    path = tmp_path / "slices/0-8/offsets.npy"
    offsets = np.load(path)
    offsets[3], offsets[4] = offsets[4], offsets[3]
    np.save(path, offsets)
    with pytest.raises(DataError, match=r"offsets.npy: ValueError: offsets that fall"):
        read().slices["0-8"].count_units(128, workload="causal_lm")


@pytest.mark.parametrize("what", ["run.json", "a segment"])
def test_the_training_of_another_cell_is_refused_in_one_line(tmp_path, what, read):
    if what == "run.json":
        edit_json(tmp_path / "runs/2proc/run.json", world_size=3)
    else:
        path = segment_folder(tmp_path, "2proc")
        edit_json(path / "segment.json", cell="1proc")
        seal_segment(path)
    with pytest.raises(
        DataError, match=r"2proc/run\.json: the training of .*, params\.yaml has 2proc \(ddp, 2\); dele"
    ):
        read()
