"""The section `search`: what trials are trained with, what is refused, and the patch of the best."""

import re
import subprocess

import pytest

from tasks.params import load_params
from tasks.params.editing import make_patch, make_train_changes
from tasks.params.search import Configuration, SearchParams
from tasks.params.strict_yaml import read_strict_yaml


def draw(**changes):
    """Return what the first six trials of such a search are trained with."""
    search = SearchParams(**changes)
    return [search.draw(index) for index in range(6)]


def test_what_a_trial_has_follows_from_the_seed_and_its_number_alone():
    first = draw()
    # Pinned: another machine, version or process gives the same trials.
    assert first[1] == Configuration(learning_rate=1.8e-05, batch_size=2, weight_decay=0.0777, warmup_steps=0)
    assert draw(trials=60, at_once=7, rungs=[2, 4], eta=2, repeats=0) == first
    assert all(one != other for one, other in zip(draw(seed=43), first, strict=True))
    # A key draws for itself: what others may be changes nothing of it.
    narrow = draw(batch_size=[8], warmup_steps=[1])
    assert [one.learning_rate for one in narrow] == [one.learning_rate for one in first]


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
    expected = read_strict_yaml(file)
    drawn = Configuration(learning_rate=1.8e-05, batch_size=2, weight_decay=0.0777, warmup_steps=7)
    changes = {**make_train_changes(load_params(project / "presets/embedded-search.yaml"), drawn), "epochs": 9}
    (tmp_path / "params.patch").write_text(make_patch(whole, changes))
    subprocess.run(["git", "apply", "params.patch"], cwd=tmp_path, check=True)
    assert read_strict_yaml(file) == {**expected, "train": {**expected["train"], **changes}}
    remarks, before = (re.findall("#.*", text) for text in (file.read_text(), whole))
    assert remarks == before != []
