"""The section `search`: what trials are trained with, what is refused, and the patch of the best."""

import subprocess

import pytest

from tasks.params import load_params
from tasks.params.editing import make_patch, make_train_changes
from tasks.params.search import Configuration, SearchParams
from tasks.params.strict_yaml import read_strict_yaml
from tests.tasks.local_rows import ask

DEFAULTS = SearchParams()


def test_what_a_trial_has_follows_from_the_seed_and_its_number_alone():
    # Pinned: another machine, version or process gives the same trials.
    assert DEFAULTS.draw(1) == Configuration(
        learning_rate=1.8e-05, batch_size=2, weight_decay=0.0777, warmup_steps=0
    )  # fmt: skip
    assert DEFAULTS.draw(2) == Configuration(
        learning_rate=3.99e-05, batch_size=2, weight_decay=0.0901, warmup_steps=100
    )  # fmt: skip
    more = SearchParams(trials=60, at_once=7, rungs=[2, 4], eta=2, repeats=0)
    assert [more.draw(index) for index in range(6)] == [DEFAULTS.draw(index) for index in range(6)]
    other = SearchParams(seed=43)
    assert all(other.draw(index) != DEFAULTS.draw(index) for index in range(6))
    # A key draws for itself: what others may be changes nothing of it.
    narrow = SearchParams(batch_size=[8], warmup_steps=[1])
    assert [narrow.draw(index).learning_rate for index in range(6)] == [
        DEFAULTS.draw(index).learning_rate for index in range(6)
    ]


def test_who_asks_for_no_search_is_asked_for_nothing():
    assert "ranges: got 2 with search" in str(ask(ranges=["0-10", "10-20"]).explain_unsearchable())


def test_micro_batches_are_what_every_cell_can_split_that_can_split_the_batch(project):
    params = load_params(project / "presets/embedded-search.yaml")
    sizes = {
        batch: make_train_changes(
            params, Configuration(learning_rate=1e-3, batch_size=batch, weight_decay=0.0, warmup_steps=0)
        )["micro_batch_size"]
        for batch in (1, 2, 3, 4, 8)
    }
    assert sizes == {1: 1, 2: 1, 3: 1, 4: 2, 8: 4}


@pytest.mark.parametrize("text", ["block", "flow", "no newline"])
def test_the_patch_applies_and_changes_what_it_says_alone(text, project, tmp_path):
    file = tmp_path / "params.yaml"
    whole = (project / "presets/embedded-search.yaml").read_text()
    if text == "flow":
        start, end = whole.index("train:"), whole.index("cells:")
        whole = whole[:start] + "train: {epochs: 2, learning_rate: 1e-3, seq_len: 64}  # mine\n\n" + whole[end:]
    if text == "no newline":
        head, _, tail = whole.partition("cells:")
        whole = f"cells:{tail}\n{head}".replace("  schedule_span: run\n", "").rstrip()
    file.write_text(whole)
    before = read_strict_yaml(file)
    drawn = Configuration(learning_rate=1.8e-05, batch_size=2, weight_decay=0.0777, warmup_steps=7)
    changes = {**make_train_changes(load_params(project / "presets/embedded-search.yaml"), drawn), "epochs": 9}
    (tmp_path / "params.patch").write_text(make_patch(whole, changes))
    subprocess.run(["git", "apply", "params.patch"], cwd=tmp_path, check=True)
    assert read_strict_yaml(file) == {**before, "train": {**before["train"], **changes}}
    comments = [line for line in whole.splitlines() if "#" in line]
    assert comments
    assert [line.partition("#")[2] for line in file.read_text().splitlines() if "#" in line] == [
        line.partition("#")[2] for line in comments
    ]
