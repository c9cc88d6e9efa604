"""The section `search`: what trials are trained with, what is refused, and the patch of the best."""

import subprocess

import pytest
from ruamel.yaml import YAML

from tasks.params import Params, load_params
from tasks.params.editing import make_patch, make_train_changes
from tasks.params.search import Configuration, SearchParams
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ConfigurationError

DEFAULTS = SearchParams()


def _raw(project, **search):
    raw = YAML(typ="safe", pure=True).load(project / "presets/embedded-search.yaml")
    return {**raw, "search": {**raw["search"], **search}}


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


BAD = {
    "learning rates upside down": ({"learning_rate": [5e-5, 5e-6]}, ["search.learning_rate", "least and largest"]),
    "no least learning rate": ({"learning_rate": [0.0, 5e-6]}, ["search.learning_rate", "from 1e-12"]),
    "rungs that fall": ({"rungs": [3, 1]}, ["search.rungs", "rising"]),
    "warm-up beyond the end": ({"warmup_steps": [0, 5000]}, ["search.warmup_steps", "got 5000", "less than 153"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_search_is_one_line_with_what_was_got_and_what_is_allowed(case, project, tmp_path):
    search, words = BAD[case]
    file = tmp_path / "params.yaml"
    YAML(typ="rt").dump(_raw(project, **search), file)
    with pytest.raises(ConfigurationError) as found:
        load_params(file)
    assert "\n" not in str(found.value)
    assert "allowed" in str(found.value)
    for word in words:
        assert word in str(found.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranges": ["0-100", "100-200"]}, "ranges: got 2 with search; allowed: one"),
        ({"cells": {"8proc": {"strategy": "ddp", "world_size": 8}}}, "search.batch_size: got 4; allowed: multiples"),
    ],
)
def test_a_comparison_that_cannot_be_searched_is_refused(project, changes, words):
    raw = {**_raw(project), **changes}
    raw["train"] |= {"global_batch_size": 64, "micro_batch_size": 4}
    with pytest.raises(ValueError, match=words):
        Params.model_validate(raw)
    # Who asks for no search is asked for nothing.
    del raw["search"]
    assert Params.model_validate(raw).explain_unsearchable() is not None


def test_micro_batches_are_what_every_cell_can_split_that_can_split_the_batch(project):
    params = Params.model_validate(_raw(project))
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
