"""The report of a search: its figures worked out by hand, its charts, its page and its Markdown."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tasks.params.search import Configuration, SearchParams
from tasks.process.failure import DataError
from tasks.records.search import RepeatRecord, SearchFile, SpreadRecord, TrialEpoch, TrialRecord
from tasks.reporting.search import judge_lead, tell_best, tell_luck, tell_spread, write_search_report

T_OF_TWO = 4.302652729911275
"""The 97.5 % point of Student's t with two degrees of freedom, from a table."""


def _trial(index: int, losses: dict[int, float], seconds: list[float], problem: str | None = None) -> TrialRecord:
    drawn = Configuration(
        learning_rate=1e-5 * (index + 1), batch_size=2**index, weight_decay=0.1 * index, warmup_steps=100 * index
    )  # fmt: skip
    epochs = [TrialEpoch(num_tokens=1000, train_seconds=one) for one in seconds]
    return TrialRecord(name=f"trial-{index}", drawn=drawn, losses=losses, epochs=epochs, problem=problem)


@pytest.fixture
def found() -> SearchFile:
    return SearchFile(
        name="mine", about="A model; some texts, rows 0-90; on the CPU.", heldout="90-100", unit="token",
        asked=SearchParams(trials=4, rungs=[1, 3]), train_seed=42, base_loss=4.0,
        trials=[
            _trial(0, {1: 3.2}, [12.0]),
            _trial(1, {1: 3.0, 3: 2.5}, [10.0, 6.0, 8.0]),
            _trial(2, {1: 3.1}, [11.0]),
            _trial(3, {}, [], problem="train: loss is nan"),
        ],
        best=1, runner_up=2, compared_after=1,
        repeats=[RepeatRecord(trial=1, seed=43, loss=3.04), RepeatRecord(trial=2, seed=43, loss=3.06)],
        spread=SpreadRecord(cell="2proc", world_size=2, epoch=TrialEpoch(num_tokens=1000, train_seconds=4.0)),
        patch="--- a/params.yaml\n+++ b/params.yaml\n",
    )  # fmt: skip


def _change(found: SearchFile, **changes: Any) -> SearchFile:
    return found.model_copy(update=changes)


def test_the_lead_stands_beside_what_seeds_alone_do(found: SearchFile) -> None:
    luck = judge_lead(found)
    assert luck is not None
    # 3.00 and 3.04 have the variance 0.0008, 3.10 and 3.06 too.
    assert luck.lead == pytest.approx(0.1)
    assert luck.other_lead == pytest.approx(0.02)
    assert luck.scatter == pytest.approx(math.sqrt(0.0008))
    assert luck.reach == pytest.approx(T_OF_TWO * math.sqrt(2) * math.sqrt(0.0008))
    assert not luck.is_beyond
    told = tell_luck(found)
    assert told.startswith("So the lead may be luck")
    assert "led trial-2 by 0.1000, with 1 other seed by 0.0200 in the mean" in told
    assert "scatter by 0.0283" in told


def test_a_lead_beyond_the_scatter_that_other_seeds_show_too_is_more_than_luck(found: SearchFile) -> None:
    close = [RepeatRecord(trial=1, seed=43, loss=3.001), RepeatRecord(trial=2, seed=43, loss=3.101)]
    assert tell_luck(_change(found, repeats=close)).startswith("That is more than luck makes")
    turned = [RepeatRecord(trial=1, seed=43, loss=3.001), RepeatRecord(trial=2, seed=43, loss=2.999)]
    assert tell_luck(_change(found, repeats=turned)).startswith("So the lead may be luck")


def test_trials_at_once_and_ranks_per_trial_are_reckoned_from_what_was_measured(found: SearchFile) -> None:
    # Beside others: the first epoch, 10 s; alone: the mean of 6 and 8 s; by two ranks: 4 s. Three trials had an epoch,
    # two at a time, and one had two more: 2 x 10 + 2 x 7 = 34 s, against 3 x 4 + 2 x 4 = 20 s.
    told = tell_spread(found)
    assert "took 10.0 s beside other trials, 7.00 s alone and 4.00 s by the 2 ranks of 2proc" in told
    assert "take 34.0 s with 2 trials at once and 20.0 s with one by one on 2 ranks" in told
    assert told.endswith("sooner done are ranks per trial, by 1.70x.")
    slow = SpreadRecord(cell="2proc", world_size=2, epoch=TrialEpoch(num_tokens=1000, train_seconds=8.5))
    assert tell_spread(_change(found, spread=slow)).endswith("sooner done are trials at once, by 1.25x.")


def test_the_report_is_a_page_that_needs_no_other_file_and_the_same_as_markdown(
    found: SearchFile, tmp_path: Path
) -> None:
    page, markdown, *others = write_search_report(found, tmp_path)
    assert (page, markdown) == (tmp_path / "search.html", tmp_path / "search.md")
    assert {file.name for file in others} == {"params.patch", "search.json"}
    for text in (page.read_text(), markdown.read_text()):
        assert tell_best(found) in text
        assert "train: loss is nan" in text
        assert "patch -p1 &lt; reports/search/params.patch" in text or "patch -p1 < reports/search" in text
    assert "<img" not in page.read_text()


def test_what_is_read_is_what_was_written_and_a_damaged_file_is_refused(found: SearchFile, tmp_path: Path) -> None:
    found.write(tmp_path)
    assert SearchFile.read(tmp_path) == found
    raw = json.loads((tmp_path / "search.json").read_bytes())
    (tmp_path / "search.json").write_text(json.dumps({**raw, "best": "x"}))
    with pytest.raises(DataError, match=r"search\.json: best: "):
        SearchFile.read(tmp_path)
