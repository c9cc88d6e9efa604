"""Where the noise scale is taken: what stands beside a checkpoint is read, or refused if it is damaged."""

from pathlib import Path

import pytest
import torch

from tasks.evaluating.subjects import list_epoch_subjects
from tasks.measuring.noise_points import Point, load_state
from tasks.params import Params
from tasks.process.failure import DataError
from tests.finished_comparison import run_facts, write_receipt
from tests.tracked_run import PARAMS
from training.process.files import digest_file, write_json


@pytest.fixture
def params(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Params:
    monkeypatch.chdir(tmp_path)
    return Params.model_validate(PARAMS)


def make_checkpoint(folder: Path) -> Path:
    """Write a segment's weights with a state beside them; return the weights."""
    folder.mkdir(parents=True)
    torch.save({"a": torch.zeros(2)}, folder / "tiny_0-80-epoch-1.pt")
    torch.save({"optimizer": {"state": {0: {"step": 3}}}}, folder / "state.pt")
    return folder / "tiny_0-80-epoch-1.pt"


def test_the_state_beside_a_checkpoint_is_what_its_receipt_says_or_refused(tmp_path: Path, params: Params) -> None:
    file = make_checkpoint(tmp_path / "segment")
    digest = digest_file(tmp_path / "segment" / "state.pt")
    point = Point("0-80", 1, file, "w", digest)
    assert load_state(point, params) == {"optimizer": {"state": {0: {"step": 3}}}}
    sgd = params.model_copy(update={"train": params.train.model_copy(update={"optimizer": "sgd"})})
    assert load_state(point, sgd) is None
    assert load_state(point._replace(state_digest=None), params) is None
    assert load_state(point._replace(checkpoint=None), params) is None
    (tmp_path / "segment" / "state.pt").write_bytes(b"other")
    with pytest.raises(DataError, match=r"state\.pt: is damaged"):
        load_state(point, params)


def test_every_segment_of_the_baseline_names_the_state_beside_its_weights(tmp_path: Path, params: Params) -> None:
    cell = next(iter(params.cells))
    name = params.model.name
    entries = []
    for epoch, has_state in ((1, True), (2, False)):
        folder = tmp_path / "runs" / cell / "segments" / str(epoch)
        weights = make_checkpoint(folder).rename(folder / f"{name}_0-80-epoch-{epoch}.pt")
        write_receipt(folder, [weights.name, *["state.pt"] * has_state])
        entries.append({"range": "0-80", "epoch": epoch, "fingerprint": "f", "folder": f"segments/{epoch}"})
    facts = run_facts(cell, segments=entries, final_checkpoint="x")
    write_json(tmp_path / "runs" / cell / "run.json", facts)
    found = list_epoch_subjects(params, [cell], runs=tmp_path / "runs")
    assert [one.state_digest for one in found] == [digest_file(tmp_path / "runs" / cell / "segments/1/state.pt"), None]
