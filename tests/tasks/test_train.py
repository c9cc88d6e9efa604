"""What a segment's content depends on, and what it does not."""

from itertools import product

import pytest
from ruamel.yaml import YAML

from tasks.data.builtin.corpus import PACKAGES
from tasks.fingerprint import write_snapshots
from tasks.params import Params
from tasks.records.facts import SliceFacts
from tasks.records.manifests import BaseModelManifest, InputsFile
from tasks.train import CellTraining, explain_left_work, plan_segments
from tests.tiny import make_config, make_slice
from training.process.files import write_json
from training.state.receipt import drop_files, seal_folder

PARTS = ("0-20", "20-40", "40-60", "60-80")
SLICES = {part: SliceFacts(range=part, num_rows=20, num_tokens=200, digest=f"digest of {part}") for part in PARTS}
FACTS = {"base_model": "b", "machine": "m"}


def _params(project, **changes):
    raw = YAML(typ="safe", pure=True).load(project / "params.yaml")
    raw |= {"ranges": ["0-20", "20-40"], "heldout": "100-120"}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        raw[section] = raw[section] | {name: value} if name else value
    return Params.model_validate(raw)


def _fingerprints(params, cell="2proc", **facts):
    return [part.fingerprint for part in plan_segments(cell, params, slices=SLICES, **{**FACTS, **facts})]


def test_segments_come_range_by_range_and_epoch_by_epoch_and_depend_on_what_came_before(project):
    segments = plan_segments("1proc", _params(project, train__epochs=2), slices=SLICES, **FACTS)
    assert [(part.range, part.epoch) for part in segments] == [*product(("0-20", "20-40"), (1, 2))]
    assert [part.num_steps for part in segments] == [2, 2, 2, 2]  # 20 rows, 16 per step
    before, more, other = (
        _fingerprints(_params(project, train__epochs=1, ranges=ranges))
        for ranges in (["0-20", "20-40"], ["0-20", "20-40", "40-60"], ["60-80", "20-40"])
    )
    assert more[:2] == before
    assert len({*more, *other}) == 5


@pytest.mark.parametrize(
    ("schedule", "num_kept"),
    [
        # Two steps per segment.
        ({"schedule": "linear"}, 0),
        ({"schedule": "constant"}, 3),
        ({"schedule": "constant", "warmup_steps": 1}, 3),
        ({"schedule": "wsd", "decay_steps": 2}, 2),
        ({"schedule": "wsd", "decay_steps": 3}, 1),
    ],
)
def test_a_schedule_over_the_run_leaves_of_one_more_epoch_what_it_had_not_begun_to_decay(project, schedule, num_kept):
    told = {f"train__{key}": value for key, value in schedule.items()} | {"ranges": ["0-20"]}
    before, after, apart = (
        _fingerprints(_params(project, **told, train__epochs=epochs, train__schedule_span=span))
        for epochs, span in ((3, "run"), (4, "run"), (3, "segment"))
    )
    assert [one in after for one in before] == [True] * num_kept + [False] * (3 - num_kept)
    # The first segment's own schedule is another one.
    assert set(apart).isdisjoint(before)


@pytest.mark.parametrize(
    ("package", "changes", "touched"),
    [
        ("deepspeed", {"cells": {name: {"strategy": name, "world_size": 2} for name in ("ddp", "deepspeed")}},
         {"deepspeed"}),
        ("peft", {"train__adapter": {"rank": 4, "alpha": 8}}, {"1proc", "2proc"}),
        ("tokenizers", {}, set()),
    ],
)  # fmt: skip
def test_another_version_of_a_package_that_computes_the_update_is_another_segment_of_its_cells(
    package, changes, touched, project, tmp_path, monkeypatch
):
    found, of_rows = [], {"download", "slice"}
    for version in ("1.0", "1.1"):
        place = tmp_path / version
        (place / package).mkdir(parents=True)
        (place / package / "__init__.py").touch()
        (about := place / f"{package}-{version}.dist-info").mkdir()
        (about / "METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(place)
        params = _params(project, **changes)
        found.append({cell: _fingerprints(params, cell) for cell in params.cells})
        # DVC runs the stages of such a cell again, and no others.
        write_snapshots(tmp_path / "stages", params)
        packages = {file.stem: InputsFile.read(file).packages for file in (tmp_path / "stages").glob("*.json")}
        assert all(packages[name].keys() >= {*PACKAGES} for name in of_rows)
        computing = {"measure", *(f"train@{cell}" for cell in params.cells)}
        assert {name for name in computing | of_rows if packages[name].get(package) == version} == (
            {"measure", *(f"train@{cell}" for cell in touched)} if touched else of_rows
        )
        assert all(packages[name].keys() <= {package} for name in computing)
    for cell, first in found[0].items():
        second = found[1][cell]
        assert [first == second, not {*first}.isdisjoint(second)] == [cell not in touched] * 2


@pytest.mark.parametrize(
    ("keep", "lacking", "missing"),
    [
        # What is gone of each of four segments, and which of them are missing.
        ("last", "*.pt *.pt *.pt -", ""),
        ("last", "*.pt *.pt *.pt *", "0123"),
        ("last", "*.pt - *.pt *", "23"),
        ("last", "*.pt - - state.pt", "3"),
        ("epochs", "state.pt state.pt - -", ""),
        ("epochs", "tiny.pt - - -", "0"),
        ("last", "- steps.jsonl - -", "1"),
        ("all", "- state.pt - -", "1"),
    ],
)
def test_a_segment_is_missing_where_more_is_gone_than_is_not_kept_or_the_next_one_begins_with_it(
    keep, lacking, missing, project, tmp_path
):
    params = _params(project, train__keep=keep)
    segments = plan_segments("1proc", params, slices=SLICES, **FACTS)
    run = CellTraining(
        params=params, cell="1proc", device="cpu", base_model=BaseModelManifest.model_construct(num_parameters=10),
        machine_digest="m", segments=segments, work=tmp_path,
    )  # fmt: skip
    for part, gone in zip(segments, lacking.split(), strict=True):
        with seal_folder(run.locate_segment(part), fingerprint=part.fingerprint, facts={}) as folder:
            for name in ("tiny.pt", "state.pt", "steps.jsonl"):
                (folder / name).write_text(name)
        drop_files(run.locate_segment(part), gone)
    assert run.list_missing() == [segments[int(index)] for index in missing]
    assert run.count_max_checkpoints(segments) == pytest.approx({"all": 5, "epochs": 3 + 2 / 3, "last": 3}[keep])


def test_unfinished_work_of_another_number_of_ranks_is_named_in_one_line(tmp_path):
    slices = [make_slice(tmp_path / part, num_rows=20, first_row=row) for part, row in (("0-20", 0), ("20-40", 20))]
    told = make_config(tmp_path, tmp_path / "model", slices, world_size=2)
    second = told["segments"][1]
    assert explain_left_work(tmp_path, world_size=4) is None, "nothing was started yet"
    write_json(tmp_path / "config.json", told)
    assert explain_left_work(tmp_path, world_size=4) is None, "and then nothing was left"
    (tmp_path / "partial" / second["fingerprint"] / "step-00000003").mkdir(parents=True)
    said = explain_left_work(tmp_path, world_size=4) or ""
    assert "20-40 epoch 1 is unfinished work of 2 ranks and is not gone on with on 4" in said
    assert "\n" not in said
    assert explain_left_work(tmp_path, world_size=2) is None, "that is gone on with"
