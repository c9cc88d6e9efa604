"""The report of a search: reports/search.html and search.md, with its figures and patch in reports/search/."""

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from tasks.process import wording
from tasks.records.search import SearchFile, TrialRecord
from tasks.reporting.blocks import Block, Code, Document, Items, PageSection, Table, Text
from tasks.reporting.data_files import write_text
from tasks.reporting.html import render_html
from tasks.reporting.markdown import render_markdown

FOLDER = "search"
"""Below reports/: what stands beside the page."""
PATCH = "params.patch"
_SURE = 0.95


class Luck(NamedTuple):
    """The lead of the best configuration beside what seeds alone do; nats per label."""

    lead: float
    """Of the best over the runner-up, at the seed of the search."""
    other_lead: float
    """The same in the mean of the other seeds."""
    scatter: float
    """Standard deviation over seeds within a configuration, of both together."""
    reach: float
    """What two runs of one configuration part by in 95 % of cases, at most."""

    @property
    def is_beyond(self) -> bool:
        """Whether luck alone hardly makes such a lead, and the other seeds show one too."""
        return self.lead > self.reach and self.other_lead > 0


def judge_lead(found: SearchFile) -> Luck | None:
    """Return what seeds say of the lead; None where no other seed was trained for both."""
    if found.runner_up is None:
        return None
    pair = (found.best, found.runner_up)
    others = [[one.loss for one in found.repeats if one.trial == index and one.loss is not None] for index in pair]
    if not all(others):
        return None
    own = [found.trials[index].losses[found.compared_after] for index in pair]
    samples = [[loss, *more] for loss, more in zip(own, others, strict=True)]
    freedom = sum(map(len, samples)) - 2
    scatter = math.sqrt(sum((len(one) - 1) * statistics.variance(one) for one in samples) / freedom)
    from scipy.stats import t  # here, not above: it takes half a second

    reach = float(t.ppf((1 + _SURE) / 2, freedom)) * math.sqrt(2) * scatter
    means = [statistics.mean(one) for one in others]
    return Luck(lead=own[1] - own[0], other_lead=means[1] - means[0], scatter=scatter, reach=reach)


def tell_best(found: SearchFile) -> str:
    """Return which configuration won, in one sentence."""
    best, epochs = found.trials[found.best], found.asked.rungs[-1]
    return (
        f"{best.name} is the best of {wording.format_plural(len(found.trials), 'trial')}: held-out loss "
        f"{wording.format_loss(best.losses[epochs])} after {wording.format_plural(epochs, 'epoch')}, with {best.drawn}."
    )


def tell_luck(found: SearchFile) -> str:
    """Return how much of the lead may be luck."""
    luck = judge_lead(found)
    if found.runner_up is None:
        return "No other trial was compared with it, so that there is no lead to judge."
    if luck is None:
        return "How much of its lead is luck is not told: no other seed was trained for both (search.repeats)."
    best, runner_up = found.trials[found.best].name, found.trials[found.runner_up].name
    word = "That is more than luck makes" if luck.is_beyond else "So the lead may be luck"
    seeds = len({one.seed for one in found.repeats})
    return (
        f"{word}: after {wording.format_plural(found.compared_after, 'epoch')} {best} led {runner_up} by "
        f"{luck.lead:.4f}, with {wording.format_plural(seeds, 'other seed')} by {luck.other_lead:.4f} in the mean; "
        f"seeds alone scatter by {luck.scatter:.4f} (standard deviation), so that two runs of one configuration part "
        f"by up to {luck.reach:.4f} in 95 % of cases."
    )


def tell_spread(found: SearchFile) -> str:
    """Return whether trials at once or several ranks per trial finish this search sooner, as far as it was measured."""
    alone, beside = (_find_seconds(found, is_alone=is_alone) for is_alone in (True, False))
    if isinstance(found.spread, str) or alone is None or beside is None:
        why = found.spread if isinstance(found.spread, str) else "no trial ran both beside others and alone"
        return f"It is not told whether trials at once or several ranks per trial are sooner done: {why}."
    ranks, at_once, seconds = found.spread.world_size, found.asked.at_once, found.spread.epoch.train_seconds
    whole, by_ranks = _reckon(found, alone=alone, beside=beside), _reckon(found, alone=seconds, beside=None)
    show = wording.format_seconds
    sooner, times = ("trials at once", by_ranks / whole) if whole < by_ranks else ("ranks per trial", whole / by_ranks)
    return (
        f"An epoch of the best configuration took {show(beside)} beside other trials, {show(alone)} alone and "
        f"{show(seconds)} by the {ranks} ranks of {found.spread.cell}. With these seconds for all, the steps of "
        f"the whole search take {show(whole)} with {at_once} trials at once and {show(by_ranks)} with one by one "
        f"on {ranks} ranks: sooner done are {sooner}, by {wording.format_ratio(times)}."
    )


def _list_rungs(found: SearchFile) -> Iterator[tuple[int, int, int]]:
    """Yield (epochs before, epochs after, trials) of every rung."""
    for before, after in zip([0, *found.asked.rungs], found.asked.rungs, strict=False):
        yield before, after, sum(after in trial.losses for trial in found.trials)


def _find_seconds(found: SearchFile, *, is_alone: bool) -> float | None:
    """Return the mean seconds of the best trial's epochs in rungs that it had to itself, or in those it shared."""
    epochs = found.trials[found.best].epochs
    seconds = [
        one.train_seconds
        for before, after, number in _list_rungs(found)
        if (min(number, found.asked.at_once) == 1) == is_alone
        for one in epochs[before:after]
    ]
    return statistics.mean(seconds) if seconds else None


def _reckon(found: SearchFile, *, alone: float, beside: float | None) -> float:
    """Return the seconds of the whole search; without `beside`, of one trial after another."""
    total = 0.0
    for before, after, number in _list_rungs(found):
        rounds = number if beside is None else -(-number // found.asked.at_once)
        total += (
            rounds * (after - before) * (alone if beside is None or min(number, found.asked.at_once) == 1 else beside)
        )
    return total


def make_document(found: SearchFile) -> Document:
    """Return the report of a search, for every renderer."""
    luck = judge_lead(found)
    role: Literal["answer", "unresolved"] = "answer" if luck and luck.is_beyond else "unresolved"
    rungs = [f"Loss after {epochs}" for epochs in found.asked.rungs]
    headings = ["Trial", "Learning rate", "Batch", "Weight decay", "Warm-up", *rungs, "What became of it"]
    rows = [_list_cells(found, one) for one in found.trials]
    how = (
        "The patch puts the best parameters into params.yaml. `make compare` then takes the checkpoints of "
        f"{found.trials[found.best].name} for those of the first cell, trains the others and says how much faster they "
        "are. A cell whose ranks cannot split the batch has to go first; `make params` names it."
    )
    commands = f"patch -p1 < reports/{FOLDER}/{PATCH}\nmake params\nmake compare"
    sections = [
        PageSection("best", "The best", [Text(tell_best(found), "answer"), Text(tell_luck(found), role)]),
        PageSection(
            "trials",
            "Trials",
            [
                Table(f"Trials, and their loss on rows {found.heldout}", headings, rows, num_prose=1),
                Text(
                    f"All trials of a rung learned from as many {found.unit}s, every one by a schedule that runs once "
                    f"over {wording.format_plural(found.asked.rungs[-1], 'epoch')}: before the last rung it has not "
                    f"decayed to its end. One in {found.asked.eta} goes on from its checkpoint, at least one; of equal "
                    f"losses the lower number. What trials have follows from seed {found.asked.seed} and their number; "
                    f"they trained with seed {found.train_seed}."
                ),
            ],
        ),
        PageSection("luck", "How much of the lead is luck?", _tell_seeds(found)),
        PageSection("spread", "Trials at once, or ranks per trial?", [Text(tell_spread(found))]),
        PageSection(
            "next",
            "How to go on with it",
            [Text(how), Code(commands, "sh", "how to go on"), Code(found.patch, "diff", "the patch")],
        ),
    ]
    return Document(
        f"{found.name}: search", "which parameters are best?", tell_best(found), [Text(found.about)], sections
    )


def _list_cells(found: SearchFile, trial: TrialRecord) -> list[str]:
    losses = [wording.format_loss(trial.losses[one]) if one in trial.losses else "" for one in found.asked.rungs]
    end = f"not promoted after {wording.format_plural(max(trial.losses, default=0), 'epoch')}"
    if found.asked.rungs[-1] in trial.losses:
        end = "the best" if trial is found.trials[found.best] else "came to the end"
    return [trial.name, *(f"{value:g}" for value in trial.drawn.model_dump().values()), *losses, trial.problem or end]


def _tell_seeds(found: SearchFile) -> list[Block]:
    pair = [index for index in (found.best, found.runner_up) if index is not None]
    rows = [(index, found.train_seed, found.trials[index].losses[found.compared_after]) for index in pair]
    more = [(one.trial, one.seed, one.loss) for one in found.repeats]
    shown = [
        [found.trials[index].name, str(seed), wording.format_optional(loss, wording.format_loss)]
        for index, seed, loss in sorted([*rows, *more], key=lambda row: row[:2])
    ]
    title = f"Held-out loss after {wording.format_plural(found.compared_after, 'epoch')}"
    warnings = (
        "The best was chosen for its loss at one seed, so that its lead there is flattered; others were not chosen.",
        "A seed decides the order of the rows, and dropout. Base model, rows and held-out rows are the same for all.",
    )
    return [Text(tell_luck(found)), Table(title, ["Trial", "Seed", "Loss"], shown, num_row_headings=2), Items(warnings)]


def write_search_report(found: SearchFile, reports: Path) -> list[Path]:
    """Write page, Markdown, figures and patch; return them, the page first."""
    folder = reports / FOLDER
    document = make_document(found)
    files = {
        reports / "search.html": render_html(document, {}),
        reports / "search.md": render_markdown(document),
        folder / PATCH: found.patch,
    }
    for file, text in files.items():
        write_text(file, text)
    found.write(folder)
    return [*files, SearchFile.path_in(folder)]
