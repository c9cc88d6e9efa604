import hashlib
import re
import shutil

import numpy as np
import pytest

from benchmarks.growth.finished import seal_segment, write_ledger
from tasks.process.failure import DataError
from tests.ledgers import read_ledger
from tests.tasks.reporting.comparison import edit_json, edit_segment, segment_folder


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
    with pytest.raises(DataError) as refused:
        collect()
    assert str(path) in str(refused.value)
    assert "dvc repro" in str(refused.value)


def test_tokens_to_learn_leave_out_the_first_of_each_row_and_what_is_cut(read):
    part = read().slices["0-8"]
    assert part.count_units(128, workload="causal_lm") == 3 + 4 + 5 + 3 + 4 + 5 + 3 + 4
    assert part.count_units(5, workload="causal_lm") == 3 + 4 + 4 + 3 + 4 + 4 + 3 + 4
    assert part.count_units(1, workload="causal_lm") == 0
    assert part.count_units(5, workload="sequence_classification") == 4 + 5 + 5 + 4 + 5 + 5 + 4 + 5
    assert part.count_units(5, workload="image_classification") == 8


def _flip(path):
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)


def _seal(segment, content):
    """Write a ledger that its receipt vouches for."""
    (segment / "ledger.int32").write_bytes(content)
    seal_segment(segment)


def _lower(column):
    def change(path):
        columns = read_ledger(path.parent)
        write_ledger(path.parent, **columns | {column: columns[column] - 8})

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip, "ValueError: sha256 is "),
        (lambda path: path.write_bytes(path.read_bytes()[:-16]), "ValueError: sha256 is "),
        (lambda path: path.write_bytes(path.read_bytes() + bytes(16)), "ValueError: sha256 is "),
        (lambda path: _seal(path.parent, path.read_bytes()[:-4]), "ValueError: cannot reshape array of size 31"),
        (lambda path: _seal(path.parent, path.read_bytes()[:-1]), "ValueError: buffer size must be a multiple"),
        *((_lower(name), f"ValueError: {name} is -") for name in ("rank", "step", "row_id", "num_tokens")),
    ],
)
def test_a_ledger_that_is_not_as_it_was_written_is_refused(tmp_path, damage, said, collect):
    path = segment_folder(tmp_path, "2proc") / "ledger.int32"
    damage(path)
    with pytest.raises(DataError) as refused:
        collect()
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"files": []}', b'{"files": {"steps.jsonl": {}}}'])
def test_a_ledger_that_no_receipt_vouches_for_is_refused(tmp_path, content, collect):
    receipt = segment_folder(tmp_path, "2proc") / "receipt.json"
    receipt.unlink() if content is None else receipt.write_bytes(content)
    with pytest.raises(DataError, match=r"2proc/segments/0-8-epoch-1/(receipt\.json: |ledger\.int32: KeyError)"):
        collect()


def _speed_up(segment, *names):
    """Let the segment have taken half the seconds, in these of its files, and say so of them alike."""
    for name in names:
        content = (segment / name).read_text()
        halved = re.sub(r'seconds": ([0-9.]+)', lambda found: f'seconds": {float(found[1]) / 2}', content)
        assert halved != content
        (segment / name).write_text(halved)


@pytest.mark.parametrize(
    ("names", "named"),
    [(("segment.json",), "segment.json"), (("steps.jsonl",), "steps.jsonl"), (("segment.json", "steps.jsonl"), "seg")],
)
def test_what_the_ranks_wrote_is_not_believed_once_it_was_edited(tmp_path, names, named, read, collect):
    segment = segment_folder(tmp_path, "2proc")
    _speed_up(segment, *names)
    with pytest.raises(DataError, match=rf"2proc/segments/0-8-epoch-1/{named}.*ValueError: sha256 is .*, its receipt"):
        collect()
    seal_segment(segment)
    run = read().runs["2proc"]
    assert (run.segments[0].facts.train_seconds == 2.0) == ("segment.json" in names)
    assert (run.steps.seconds[0] == 1.0) == ("steps.jsonl" in names)


def test_a_receipt_that_was_edited_with_the_file_is_not_believed(tmp_path, collect):
    segment = segment_folder(tmp_path, "2proc")
    before = hashlib.sha256((segment / "segment.json").read_bytes()).hexdigest()
    _speed_up(segment, "segment.json")
    after = hashlib.sha256((segment / "segment.json").read_bytes()).hexdigest()
    receipt = segment / "receipt.json"
    receipt.write_text(receipt.read_text().replace(before, after))
    with pytest.raises(DataError, match=r"receipt\.json: ValueError: it was altered: its own digest does not match"):
        collect()


def test_the_segment_of_another_training_is_refused_whole_as_it_is(tmp_path, read):
    edit_segment(tmp_path, "2proc", fingerprint="ab" * 32)
    with pytest.raises(DataError, match=r"segment\.json: ValueError: fingerprint is (ab)+, run\.json names (f1)+: ano"):
        read()


@pytest.mark.parametrize("change", [lambda raw: raw[:-8], lambda raw: raw + bytes(8)])
def test_an_array_that_ends_elsewhere_than_it_says_is_refused(tmp_path, change, collect):
    path = tmp_path / "slices/0-8/row_ids.npy"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"row_ids.npy: ValueError: (ends within|goes on after) its 8 numbers"):
        collect()


@pytest.mark.parametrize("workload", ["causal_lm", "sequence_classification"])
def test_offsets_that_fall_are_refused_whatever_the_rows_count(tmp_path, workload, read):
    path = tmp_path / "slices/0-8/offsets.npy"
    offsets = np.load(path)
    offsets[3], offsets[4] = offsets[4], offsets[3]
    np.save(path, offsets)
    with pytest.raises(DataError, match=r"offsets.npy: ValueError: offsets that fall"):
        read().slices["0-8"].count_units(128, workload=workload)


@pytest.mark.parametrize("what", ["the whole run", "run.json", "a segment"])
def test_the_training_of_another_cell_is_refused_in_one_line(tmp_path, what, read):
    runs = tmp_path / "runs"
    if what == "the whole run":
        shutil.rmtree(runs / "2proc")
        shutil.copytree(runs / "1proc", runs / "2proc")
    elif what == "run.json":
        edit_json(runs / "2proc/run.json", world_size=3)
    else:
        edit_json(segment_folder(tmp_path, "2proc") / "segment.json", cell="1proc")
        seal_segment(segment_folder(tmp_path, "2proc"))
    with pytest.raises(
        DataError, match=r"2proc/run\.json: the training of .*, params\.yaml has 2proc \(ddp, 2\); dele"
    ):
        read()
