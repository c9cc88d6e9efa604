"""The time to quality of cells that are another training, in words: for the verdict and its section."""

from tasks.process import wording
from tasks.reporting.results import Results
from tasks.reporting.time_to_quality import CellQuality


def list_others(results: Results) -> list[CellQuality]:
    """Return the cells that are another training: those with a time to quality first, the soonest before the others."""
    found = results.time_to_quality.cells[1:] if results.time_to_quality else []
    return sorted(found, key=lambda one: (one.standing.state != "proven", one.speedup is None, -(one.speedup or 0)))


def tell_cell(results: Results, one: CellQuality) -> str:
    """Return how much sooner the cell has a model as good, at what batch and rate, and apart its speed per token."""
    assert results.time_to_quality is not None
    base, target = results.baseline.cell, wording.format_loss(results.time_to_quality.target_loss)
    what = f"{one.cell}, another training ({describe_work(one)}),"
    if one.standing.state == "withheld":
        return f"{what} is withheld: “{one.standing.gates[0]}” failed: {one.standing.reason}"
    doubt = "unproven: " if one.standing.state == "unproven" else ""
    per_token = ""
    if one.speed_per_token is not None:
        ratio = wording.format_ratio(one.speed_per_token.value)
        per_token = f"; per {results.unit}, whatever it teaches, it is {ratio} as fast"
    if one.speedup is None:
        return f"{doubt}{what} has no time to quality: {explain_no_time(results, one)}{per_token}"
    return (
        f"{doubt}{what} has a model as good as {base}'s {wording.format_ratio(one.speedup)} as soon "
        f"({describe_seeds(one)}; held-out loss {target}){per_token}"
    )


def explain_no_time(results: Results, one: CellQuality) -> str:
    """Return why a cell that is not withheld has no time to quality: who did not come to the target, or began there."""
    assert results.time_to_quality is not None
    target = f"a held-out loss of {wording.format_loss(results.time_to_quality.target_loss)}"
    for each in (one, results.time_to_quality.cells[0]):
        if missed := len(each.seeds) - each.num_reached:
            trainings = wording.format_plural(len(each.seeds), "training")
            missed_it = f"{each.cell} did not reach {target} in {missed} of {trainings}"
            if each.speedup_below is None:
                return missed_it
            below = wording.format_ratio(each.speedup_below)
            return f"{missed_it}, so that it is there less than {below} as soon, if ever"
    return f"the base model has {target} already, before any training"


def describe_work(one: CellQuality) -> str:
    """Return batch and learning rate, betas if they grew too, and how it is another training beside them."""
    betas = f", betas {one.betas[0]:.3g} and {one.betas[1]:.3g}" if one.betas else ""
    how = f", {one.how}" if one.how else ""
    return f"batch {one.global_batch_size}, learning rate {one.learning_rate:.3g}{betas}{how}"


def describe_seeds(one: CellQuality) -> str:
    """Return the interval over the seeds, or that there is none."""
    if one.low is None or one.high is None:
        return f"{wording.format_plural(len(one.seeds), 'seed')}, no interval"
    return f"{one.low:.2f} to {one.high:.2f} over {len(one.seeds)} seeds"


def tell_soonest(results: Results) -> str:
    """Return what batch, rate and how many tokens an equally good model takes soonest: measured, else predicted."""
    goodput = results.goodput
    reached = [one for one in list_others(results) if one.speedup is not None and one.standing.state != "withheld"]
    if reached:
        best = reached[0]
        doubt = "Unproven: " if best.standing.state == "unproven" else ""
        if (best.speedup or 0) <= 1:
            ratio = wording.format_ratio(best.speedup)
            return f"{doubt}Not by another training: {best.cell} ({describe_work(best)}) is there {ratio} as soon."
        return (
            f"{doubt}{wording.format_ratio(best.speedup)} by {best.cell} ({describe_work(best)}), for "
            f"{best.data or 0:.2f} times the {results.unit}s and {best.device_time or 0:.2f} times the device time; "
            f"{describe_seeds(best)}."
        )
    others = list_others(results)
    if others and all(one.standing.state == "withheld" for one in others):
        return "That is withheld: a gate of these cells or of the baseline failed."
    if others:
        return f"That cannot be said: {explain_no_time(results, others[0])}."
    if goodput is None or goodput.best is None:
        return "That takes the gradient noise scale, and a prediction of the speed."
    best_point = goodput.best
    told = (
        f"Predicted: {wording.format_ratio(best_point.speedup.value)} by "
        f"{wording.format_plural(best_point.world_size, 'rank')} at a batch of {best_point.global_batch_size}"
    )
    if best_point.global_batch_size == goodput.own_batch_size:
        return f"{told}, which is the comparison's own."
    return (
        f"{told}, for {best_point.data.value:.2f} times the {results.unit}s; no cell with that batch was trained, so "
        "take it for the most that it may be."
    )
