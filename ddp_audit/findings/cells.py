"""Do two cells, and two launches of one, do the same but for the number of ranks?"""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import inf, isfinite, prod
from operator import is_not
from statistics import mean, median, mode
from typing import Any

from ddp_audit.findings import (
    UNLIKE,
    count_samples,
    do_optimizers_take_turns,
    do_samples_lead,
    each_common_step,
    fail,
    holds_whole_model,
    make_unobservable,
    question,
    succeed,
)
from ddp_audit.process import wording
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.records import Audit, RankRecord
from ddp_audit.speed import compute_speeds


@question(
    "Launches are alike",
    "Does every launch of a cell make as many steps, and none go on from what an earlier launch has written?",
    UNLIKE,
    {
        "other_numbers_of_steps": "The launches of {cell} are unlike: they made {steps_of_launches} steps",
        "went_on": "Launch {launch} of {cell} goes on from an earlier one: it reads {path}, which {earlier} wrote",
    },
    "let a launch write where no other one reads ({cell} and {launch} in SCRIPT stand for its cell and number), and "
    "begin anew",
)
def launches_alike(audit: Audit, cell: str) -> Finding | None:
    """Compare the steps of launches that ended by themselves, and the files that they wrote and read."""
    launches, problems = audit.launches[cell], []
    steps = [launched.num_steps for launched in launches if not launched.was_ended and not launched.is_failed]
    if len(set(steps)) > 1:
        text = "{cell}: its launches made {steps_of_launches} steps"
        problems.append(explain("other_numbers_of_steps", text, cell=cell, steps_of_launches=steps))
    for number, launched in enumerate(launches, start=1):
        ranks = [rank for rank in launched.ranks if rank.steps]
        read = {line["path"] for rank in ranks for line in rank.lines.get("read", [])}
        if holds_whole_model(ranks):
            loaded = [line for rank in ranks for line in rank.lines.get("loaded", [])]
            # Rows that are kept hold no weights: they are no training to go on with.
            read -= {line["path"] for line in loaded} - {line["path"] for line in loaded if line["num_held"]}
        for earlier in takewhile(partial(is_not, launched), launched.beside):
            opened = [line for rank in earlier.ranks for line in rank.lines.get("open", [])]
            # What is inside a copy of the folder is another file in every launch.
            for path in sorted(read.intersection(line["path"] for line in opened if line["mode"] in "wx")):
                if not (launched.is_apart and path.startswith(f"{audit.request.folder}/")):
                    text = "{cell}: launch {launch} reads {path}, which {earlier} wrote before"
                    about = {"cell": cell, "launch": number, "path": path, "earlier": earlier.cell}
                    problems.append(explain("went_on", text, **about))
    copies = ", each in a copy of the folder" * all(launch.is_apart for launch in launches)
    text = "{cell}: none of its {launches:plural launch} was seen to go on from an earlier one" + copies
    return make_finding(problems, text, cell=cell, launches=len(launches))


_APART, _ABOUT = 0.01, 0.25
_SHARE = 0.1
"""Of the steps."""


@question(
    "Same global batch",
    "Does an optimizer step learn from as many samples as the baseline's, at the same learning rate?",
    UNLIKE,
    {
        "other_share": "A rank of {cell} is fed {share:g} samples per step, one of {baseline} {share_of_baseline:g}",
        "other_batch": "A step of {cell} learns from {samples_per_step:g} samples, one of {baseline} from "
        "{samples_per_step_of_baseline:g}",
        "other_rate": "The learning rate of {cell} is {rate:g}, that of {baseline} {baseline_rate:g}",
    },
    "divide the batch size per rank by the number of ranks, so that the global batch stays what it was: "
    "{rank_share:32} in SCRIPT stands for 32 divided so; SCALING=weak asks for the throughput of a batch that grows",
)
def global_batch(audit: Audit, cell: str) -> Finding | None:
    """Compare samples per step and learning rates with the baseline's."""
    ranks, base_ranks = audit.ranks(cell), audit.ranks(audit.baseline)
    mine, base = count_samples(ranks), count_samples(base_ranks)
    if mine is None or base is None or not do_samples_lead(ranks, base_ranks):
        return make_unobservable(cell, "samples_unknown", "how many samples a step learns from is not known")
    batch, of_base, unit, most = float(median(mine)), float(median(base)), "samples", _APART
    if any(2 * counts.count(mode(counts)) < len(counts) for counts in (mine, base)):
        # Batches that are sized by tokens hold as many of those, and of padding, in every step.
        tokens, its = _count_elements(ranks), _count_elements(base_ranks)
        grown = len(ranks) / len(base_ranks) if audit.request.is_weak else 1.0
        apart = abs(tokens / its / grown - 1) if tokens and its else inf
        if apart <= _SHARE:
            batch, of_base, unit, most = tokens, its, "elements", _SHARE
        elif min(apart, abs(batch / of_base / grown - 1)) < _ABOUT:
            text = "how many samples a step learns from is another number in every step"
            return make_unobservable(cell, "samples_vary", text)
    rate, base_rate = (
        max((rate for step in of_cell[0].steps for rate in step["lr"] if rate is not None), default=0.0)
        for of_cell in (ranks, base_ranks)
    )
    share, its_share = batch / len(ranks), of_base / len(base_ranks)
    numbers: dict[str, Any] = {
        "baseline": audit.baseline, "samples_per_step": batch, "samples_per_step_of_baseline": of_base,
        "rate": rate, "baseline_rate": base_rate, "share": share, "share_of_baseline": its_share, "unit": unit,
    }  # fmt: skip
    if audit.request.is_weak:
        text = "learns from {share:g} {unit} per rank and step, {baseline} from {share_of_baseline:g}"
        are_apart = abs(share / its_share - 1) > most
        return fail(cell, "other_share", text, **numbers) if are_apart else succeed(cell, text, **numbers)
    samples = "learns from {samples_per_step:g} {unit} per step, {baseline} from {samples_per_step_of_baseline:g}"
    is_other_rate = abs(rate - base_rate) > _APART * base_rate
    if abs(batch / of_base - 1) > most:
        if is_other_rate or not rate:
            text = samples + ", at another learning rate: time to the same quality would tell"
            return make_unobservable(cell, "other_batch_and_rate", text, **numbers)
        text = f"{samples}, at the same learning rate of {{rate:g}}: other updates, and fewer of them"
        figure = (
            f"{cell} makes {wording.format_ratio(of_base / batch)} as many updates of the same data: what it gains per "
            "epoch is throughput (weak scaling), and no shorter way to the same model"
        )
        return replace(fail(cell, "other_batch", text, **numbers), true_figure=figure)
    if is_other_rate and rate and base_rate:
        text = "the highest learning rate is {rate:g}, {baseline}'s {baseline_rate:g}, at the same batch"
        return fail(cell, "other_rate", text, **numbers)
    pairs = list(zip(ranks[0].steps, base_ranks[0].steps, strict=False))
    other = [
        step["step"] for step, of_baseline in pairs
        if any(
            abs(item - its) > _APART * abs(its)
            for item, its in zip(step["lr"], of_baseline["lr"], strict=False) if None not in (item, its)
        )
    ]  # fmt: skip
    if len(other) > _SHARE * len(pairs):
        text = samples + ", and the highest learning rate is the same, but not that of {other}"
        which = f"{len(other):,} of {len(pairs):,} steps, first of step {other[0]:,}"
        return make_unobservable(cell, "other_rates", text, **numbers, other=which)
    return succeed(cell, samples + ", at a learning rate of {rate:g} at most", **numbers)


def _count_elements(ranks: list[RankRecord]) -> float:
    """Return how many elements most steps are fed, all ranks together, or about as many; 0 where that varies, too."""
    sizes = [sum(prod(micro.get("shape") or [0]) for micro in micros) for micros in each_common_step(ranks)]
    usual = float(median(sizes))
    return usual if 2 * sum(abs(size - usual) <= _SHARE * usual for size in sizes) >= len(sizes) else 0.0


_LEARNING_RATES = ("lr", "initial_lr", "max_lr")
"""Another question asks for those."""
_LEARNING = "tensors with a gradient"
_OFTEN = 0.5
"""What is drawn in fewer of the forward passes, as when layers are made at the first one, is no habit of the model."""
_OTHER_TARGETS, _FEWEST_SAMPLES = 0.25, 64
"""What is masked at random, or long and short rows in another order, differs by less over so many samples."""


@question(
    "Same step as the baseline",
    "Does a step have the baseline's precision, optimizer, clipping and targets, and do the same tensors learn?",
    UNLIKE,
    {
        "other_step": "The cells compute other steps: in {cell} {other}",
        "other_mode": "Not every rank of {cell} trains in training mode all the time: {other}",
    },
    "let nothing depend on the number of ranks but which rows a rank is fed, and how the model is wrapped",
)
def same_step(audit: Audit, cell: str) -> Finding | None:
    """Compare with the baseline's what its steps computed with, as far as it was seen of both."""
    ranks, base_ranks = audit.ranks(cell), audit.ranks(audit.baseline)
    mine, base = _collect_facts(ranks), _collect_facts(base_ranks)
    unlike = [name for name in mine if mine[name] != base.get(name, mine[name])]
    other = [f"{name} {mine[name]}, {audit.baseline} {base[name]}" for name in unlike]
    of_ranks = [_collect_facts([rank]).get("training mode") for rank in ranks]
    left = next(filter(None, map(_find_left_in_evaluation, ranks)), None)
    if len(set(of_ranks)) > 1 or left:
        text = "model.training is {other}; a rank that has called model.eval() has to call model.train() again"
        modes = [f"{mode} on rank {rank}" for rank, mode in enumerate(of_ranks)]
        modes = [f"False from step {left} on, after the first evaluation"] if left else modes
        return fail(cell, "other_mode", text, other=modes)
    samples, of_base = count_samples(ranks), count_samples(base_ranks)
    grown = len(ranks) / len(base_ranks) if audit.request.is_weak else 1.0
    targets, of_its = _count_targets(ranks), _count_targets(base_ranks)
    classes, its = (
        median(
            [micro["num_classes"] for rank in of_cell for _, micro in rank.micros() if micro.get("num_classes")] or [0]
        )
        for of_cell in (ranks, base_ranks)
    )
    more = len(ranks) / len(base_ranks)
    # A sample is no candidate of its own where it is left out of them.
    if its > classes > 0 and its in (classes * more, (classes + 1) * more - 1):
        other.append(f"classes of the loss {classes:g}, as where they are rows of this rank, {audit.baseline} {its:g}")
    # Where rows are gathered from all ranks, each computes the whole loss.
    is_whole = targets and of_its and 0 < classes == its * grown and abs(targets / of_its / more - 1) <= _APART
    if targets and of_its and abs(targets - of_its) > _OTHER_TARGETS * of_its and not is_whole:
        other.append(f"targets per sample {targets:.1f}, {audit.baseline} {of_its:.1f}")
    text = "; ".join(other)
    if other and not (samples and of_base and abs(median(samples) / median(of_base) / grown - 1) <= _APART):
        doubt = "{other}: at another batch that may be meant"
        return make_unobservable(cell, "other_step_at_other_batch", doubt, other=text)
    if unlike == [_LEARNING] and len(other) == 1 and any("," in facts[_LEARNING] for facts in (mine, base)):
        dropped = "{other}: where layers are dropped at random, DDP fills in those of all ranks"
        return make_unobservable(cell, "layers_dropped", dropped, other=text)
    if other:
        return fail(cell, "other_step", "{other}", other=text)
    if holds_whole_model(ranks) and do_samples_lead(ranks, base_ranks):
        fed, its = (
            median(micro.get("num_samples", 0) for rank in of_cell for _, micro in rank.micros())
            for of_cell in (ranks, base_ranks)
        )
        # Where shards leave more memory, more samples at once are no other step.
        if its < fed * (1 - _APART):
            text = (
                "it is fed {fed:g} samples at once, and {baseline} {its:g}, though a rank of both has as much memory: "
                "what more samples at once bring is in the speedup"
            )
            return make_unobservable(cell, "other_micro_batches", text, fed=fed, its=its, baseline=audit.baseline)
    same = [name for name in mine if name in base]
    return succeed(cell, "as in {baseline} are {same}", baseline=audit.baseline, same=same)


def _find_left_in_evaluation(rank: RankRecord) -> int | None:
    """Return the step after the rank's first evaluation, if its model is in training mode until then and never again.

    None where both modes are the same to it, or it may be meant: from the start on, or for another optimizer.
    """
    first = next((step["step"] for step in rank.steps if step.get("seconds", {}).get("evaluation")), 0)
    modes = {(step < first, mode) for step, micro in rank.micros() if (mode := micro.get("is_training")) is not None}
    is_other = any(micro.get("is_random") for micro in rank.steps[0]["micros"])
    is_left = modes == {(True, True), (False, False)} and is_other and not do_optimizers_take_turns([rank])
    return first if is_left else None


def _collect_facts(ranks: list[RankRecord]) -> dict[str, str]:
    """Return what was seen of the steps: name -> value, those with several values with all of them."""
    first, is_whole = ranks[0].steps[0], holds_whole_model(ranks)
    micros = [micro for rank in ranks for _, micro in rank.micros()]
    results = {
        name: ", ".join(sorted({str(micro[field]) for micro in micros if micro.get(field) not in (None, "")}))
        # What is sharded may be kept in another precision than it computes in.
        for name, field in {"training mode": "is_training", "precision": "precision"}.items()
        if is_whole or name != "precision"
    }
    if options := first.get("optimizer_options"):
        optimizer = results["optimizer"] = first["optimizer"]
        results |= {
            f"{optimizer}'s {name}": _format_value(value)
            for name, value in options.items()
            if name not in _LEARNING_RATES
        }
    results |= {f"torch's {name}": str(value) for name, value in first.get("torch_settings", {}).items()}
    # Whether each model draws random numbers, by torch's generators; without those that do now and then.
    seen: dict[str, list[bool]] = defaultdict(list)
    for micro in micros:
        if micro.get("has_drawn") is not None:
            seen[str(micro.get("computed"))].append(bool(micro["has_drawn"]))
    results |= {
        f"random numbers in the forward pass of {name}": "drawn" if any(drawn) else "not drawn"
        for name, drawn in seen.items() if not 0 < mean(drawn) < _OFTEN
    }  # fmt: skip
    if is_whole:
        gradients = [step["gradient"] for rank in ranks for step in rank.steps if step.get("gradient")]
        learning = {len(gradient.get("digests", [])) for gradient in gradients}
        results[_LEARNING] = ", ".join(map(str, sorted(learning - {0})))
        # Of a norm that is no number nothing is kept: another question asks for those.
        if all(isfinite(micro.get("loss") or 0.0) for micro in micros):
            clips = [clip for rank in ranks for step in rank.steps for clip in step.get("clips", [])]
            limits = {_format_value(clip["limit"]) for clip in clips if clip.get("limit") is not None}
            results["clipping"] = ", ".join(sorted(limits)) or "none"
    return {name: value for name, value in results.items() if value}


def _format_value(value: Any) -> str:
    """Return a number in one way, whichever type it has: 0 and 0.0 are one option; several with all of them."""
    if isinstance(value, list):
        return " and ".join(map(_format_value, value))
    if value is None:
        return "unset"
    return str(value) if isinstance(value, bool) else f"{value:g}"


def _count_targets(ranks: list[RankRecord]) -> float | None:
    """Return how many targets the loss of a sample has; None where it is not known, or of few."""
    micros = [micro for rank in ranks for _, micro in rank.micros() if micro.get("num_losses")]
    counted = [micro for micro in micros if micro.get("num_targets") is not None and micro["num_losses"] == 1]
    num_samples = sum(micro.get("num_samples", 0) for micro in counted)
    if len(counted) < len(micros) or num_samples < _FEWEST_SAMPLES:
        return None
    return float(sum(micro["num_targets"] for micro in counted)) / num_samples


_MOST_EFFICIENCY = 1.1
"""As for cells of params.yaml; beyond it a smaller share of the batch may fit where the whole did not, or not."""


@question(
    "Speedup is plausible",
    "Is the cell no faster than its number of ranks can make it?",
    UNLIKE,
    {},
    "look for what the baseline alone does: a wait, debugging, or memory that is too small for its batch",
)
def plausible_speed(audit: Audit, cell: str) -> Finding | None:
    """Compare the speedup with the number of ranks, all launches of both cells together."""
    speedup = next((speed.speedup for speed in compute_speeds(audit) if speed.cell == cell), None)
    if speedup is None:
        return None if cell == audit.baseline else make_unobservable(cell, "too_few_steps", "too few steps were seen")
    ranks = audit.request.cells[cell] / audit.request.cells[audit.baseline]
    # With an interval, its lower end: the number itself may be a slow hour of the baseline.
    if speedup.low > _MOST_EFFICIENCY * ranks:
        text = (
            "it is more times as fast as it has times the ranks of {baseline} ({efficiency:.2f} times that at least, "
            "up to {most_efficiency:g} is believed): what else {baseline} does is not known"
        )
        numbers = {"baseline": audit.baseline, "efficiency": speedup.low / ranks, "most_efficiency": _MOST_EFFICIENCY}
        return make_unobservable(cell, "beyond_linear", text, **numbers)
    text = "{efficiency:percent} of what {ranks:g} times the ranks can give"
    return succeed(cell, text, efficiency=speedup.value / ranks, ranks=ranks)
