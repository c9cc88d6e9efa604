"""The report of a search: reports/search.html and search.md, with its figures and patch in reports/search/."""

import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tasks.records.search import SearchFile
from tasks.reporting.data_files import write_text
from tasks.reporting.render import render, render_lines

FOLDER = "search"
"""Below reports/: what stands beside the page."""
PATCH = "params.patch"
_SURE = 0.95


class SeedSpread(NamedTuple):
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


class SearchCosts(NamedTuple):
    """Seconds of an epoch of the best configuration, and of the whole search if every epoch took as long."""

    beside: float
    """Beside other trials."""
    alone: float
    """On the machine by itself."""
    by_ranks: float
    """By several ranks."""
    all_at_once: float
    """The search with trials at once."""
    all_by_ranks: float
    """The search with several ranks per trial, one trial after another."""


def judge_lead(result: SearchFile) -> SeedSpread | None:
    """Return what seeds say of the lead; None where no other seed was trained for both."""
    if result.runner_up is None:
        return None
    others, samples = [], []
    for index in (result.best, result.runner_up):
        others.append([repeat.loss for repeat in result.repeats if repeat.trial == index and repeat.loss is not None])
        samples.append([result.trials[index].losses[result.compared_after], *others[-1]])
    if not all(others):
        return None
    freedom = sum(map(len, samples)) - 2
    scatter = math.sqrt(sum((len(sample) - 1) * statistics.variance(sample) for sample in samples) / freedom)
    from scipy.stats import t  # here, not above: it takes half a second

    reach = float(t.ppf((1 + _SURE) / 2, freedom)) * math.sqrt(2) * scatter
    best, runner_up = map(statistics.mean, others)
    return SeedSpread(lead=samples[1][0] - samples[0][0], other_lead=runner_up - best, scatter=scatter, reach=reach)


def compute_costs(result: SearchFile) -> SearchCosts | str:
    """Return what trials at once and several ranks per trial take, or why that was not measured."""
    if isinstance(result.spread, str):
        return result.spread
    at_once, ranks = result.asked.at_once, result.spread.epoch.train_seconds

    is_known = result.spread.epoch.num_others == 0
    seconds: dict[bool, list[float]] = {True: [], False: []}
    rungs = []
    for before, after in pairwise((0, *result.asked.rungs)):
        number = sum(after in trial.losses for trial in result.trials)
        beside = min(number, at_once) - 1
        for epoch in result.trials[result.best].epochs[before:after]:
            # Of several machines each has fewer.
            is_known &= epoch.num_others in (0, beside)
            seconds[epoch.num_others == 0].append(epoch.train_seconds)
        rungs.append((after - before, number, beside == 0))
    if not is_known:
        return "not all that is compared is known to have run beside as many trials as search.at_once says"
    if not all(seconds.values()):
        return "no trial ran both beside others and alone"
    means = {is_alone: statistics.mean(figures) for is_alone, figures in seconds.items()}
    return SearchCosts(
        beside=means[False],
        alone=means[True],
        by_ranks=ranks,
        all_at_once=sum(-(-number // at_once) * epochs * means[is_alone] for epochs, number, is_alone in rungs),
        all_by_ranks=sum(number * epochs * ranks for epochs, number, _ in rungs),
    )


def describe_search(result: SearchFile) -> list[str]:
    """Return which configuration won, how much of its lead may be luck, and what finishes such a search sooner."""
    return render_lines("search_lines", found=result, spread=judge_lead(result), costs=compute_costs(result))


def write_search_report(result: SearchFile, reports: Path) -> list[Path]:
    """Write page, Markdown, figures and patch; return them, the page first."""
    seeds, folder = judge_lead(result), reports / FOLDER
    best, lead, spread = describe_search(result)
    given: dict[str, Any] = {"found": result, "best": best, "lead": lead, "spread": spread}
    given["is_beyond"] = seeds is not None and seeds.is_beyond
    files = {
        reports / "search.html": render("html", "search", **given),
        reports / "search.md": render("markdown", "search", **given),
        folder / PATCH: result.patch,
    }
    for file, text in files.items():
        write_text(file, text)
    result.write(folder)
    return [*files, SearchFile.path_in(folder)]
