"""Only what the ranks sealed is evaluated: an edited receipt vouches for nothing."""

from pathlib import Path

import pytest
import torch

from tasks.evaluate import list_epoch_subjects
from tasks.params import load_params
from tasks.process.failure import DataError
from tests.finished_comparison import make_finished_comparison
from training.process.files import digest_file

FINAL = "data/runs/2proc/segments/8-16-epoch-1/tiny_qwen2_8-16-epoch-1.pt"


def test_weights_that_were_exchanged_together_with_their_sha256_are_refused(tmp_path, monkeypatch):
    make_finished_comparison(tmp_path)
    monkeypatch.chdir(tmp_path)
    params, runs = load_params(), Path("data/runs")
    found = [one for one in list_epoch_subjects(params, runs=runs) if one.name == "2proc"]
    assert [one.segment for one in found] == [("0-8", 1), ("8-16", 1)]
    file, receipt = Path(FINAL), Path(FINAL).parent / "receipt.json"
    before = digest_file(file)
    torch.save({name: 2 * one for name, one in torch.load(file, weights_only=True).items()}, file)
    receipt.write_text(receipt.read_text().replace(before, digest_file(file)))
    with pytest.raises(DataError, match=r"receipt\.json: cannot be used .*it was altered: its own digest does not mat"):
        list_epoch_subjects(params, runs=runs)
    assert not receipt.exists(), "the next run trains the segment anew"
