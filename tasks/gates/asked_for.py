"""Did each step, trained or timed, learn from the rows, and at the rate, that params.yaml asks for?

Both are computed a second time here, from nothing but params.yaml and the slices: an order or a schedule that is wrong
alike in all cells passes every gate that holds one cell against another.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import explain
from tasks.gates.counted_blocks import select_blocks
from tasks.params import Params
from tasks.params.choices import read_unit
from tasks.records.blocks import BlockWork
from tasks.records.ledger import digest_steps
from tasks.records.outputs import Outputs, SliceOutputs
from training.record.ledger_file import digest_rows

_SAMPLES_AT_ONCE = 2**16


def check_steps(outputs: Outputs, cell: str) -> Finding:
    """Check the rows and the learning rate of every step of the cell against a second computation of them."""
    params, run = outputs.params, outputs.runs[cell]
    problems, first_step, num_steps = [], 1, 0
    slices = {str(part): outputs.slices[str(part)] for part in params.ranges}
    steps_of = [-(-part.manifest.num_rows // params.train.global_batch_size) for part in slices.values()]
    total = sum(steps_of) * params.train.epochs
    for segment in run.segments:
        facts = segment.facts
        part = slices.get(facts.range)
        if part is None:
            continue
        expected = digest_steps(_list_steps(params, part, facts.range, facts.epoch, first_step=first_step))
        if segment.ledger.steps_digest != expected:
            problems.append(
                explain(
                    "other_order", "{where}: its rows are not in the order of seed {seed}",
                    where=segment.title, seed=params.train.seed,
                )
            )  # fmt: skip
        rates = segment.read_steps().learning_rate
        wanted = compute_learning_rates(params, num_steps=facts.num_steps, before=first_step - 1, total=total)
        differing = np.flatnonzero(~np.isclose(rates, wanted, rtol=1e-9, atol=0.0))
        if differing.size:
            at = int(differing[0])
            problems.append(
                explain(
                    "other_learning_rate",
                    "{where}: learning rate {rate:g} in its step {step}, asked for {asked_for:g}",
                    where=segment.title, rate=rates[at], step=at + 1, asked_for=wanted[at],
                )
            )  # fmt: skip
        first_step += facts.num_steps
        num_steps += facts.num_steps
    return make_finding(
        problems,
        "{cell}: the rows of each of {steps:plural step} are in the order of seed {seed}, and its learning rate is "
            "that of the {schedule} schedule",
            cell=cell, steps=num_steps, seed=params.train.seed, schedule=params.train.schedule,
    )  # fmt: skip


def compute_learning_rates(
    params: Params, *, num_steps: int, before: int = 0, total: int | None = None
) -> NDArray[np.float64]:
    """Return the learning rate of each step of a segment: (num_steps,).

    `before`: steps of the run before it; `total`: of the whole run, the segment's if None. Both count where the
    schedule runs over all of it.
    Even warm-up to the peak, then from the peak to its floor, which the step after the last would have.
    """
    train = params.train
    step = np.arange(1, num_steps + 1, dtype=np.float64)
    if train.schedule_span == "run" and total is not None:
        step, num_steps = step + before, total
    decaying = max(num_steps - train.warmup_steps, 1)
    left = (num_steps + 1 - step) / decaying
    falling = (num_steps + 1 - step) / np.clip(train.decay_steps, 1, decaying)
    shares = {
        "constant": np.ones_like(step), "linear": left, "cosine": (1 - np.cos(np.pi * left)) / 2,
        "wsd": np.minimum(falling, 1.0),
    }  # fmt: skip
    warming = step / max(train.warmup_steps, 1)
    above_floor = train.schedule_floor + (1 - train.schedule_floor) * shares[train.schedule]
    return train.learning_rate * np.where(step <= train.warmup_steps, warming, above_floor)


def order_rows(params: Params, part: SliceOutputs, name: str, *, epoch: int) -> NDArray[np.int64]:
    """Return the ids of a range's rows in the order of an epoch: (num_rows,)."""
    start, end = (int(number) for number in name.split("-"))
    row_ids = np.concatenate([np.zeros(0, dtype=np.int64), *part.row_ids()])
    order = np.random.default_rng([params.train.seed, epoch, start, end]).permutation(len(row_ids))
    rows: NDArray[np.int64] = row_ids[order]
    return rows


def _list_steps(
    params: Params, part: SliceOutputs, name: str, epoch: int, *, first_step: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (steps, row ids) of a pass over a range, some at a time."""
    rows = order_rows(params, part, name, epoch=epoch)
    for begin in range(0, len(rows), _SAMPLES_AT_ONCE):
        places = np.arange(begin, min(begin + _SAMPLES_AT_ONCE, len(rows)))
        yield first_step + places // params.train.global_batch_size, rows[places]


_SHARE_APART = 0.10
"""Of tokens per sample, which rule how long a step takes and how much of it is computation."""
_DEVIATIONS = 4
"""Standard errors that blocks of so few steps may be off by, beside that."""


@dataclass
class RowsOfSteps:
    """Which rows, and how many tokens, the timed steps of one cell have to have had."""

    outputs: Outputs
    cell: str
    _ranges: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    def digest(self, block: BlockWork, *, batch: int) -> tuple[str, int]:
        """Return digest and tokens of the rows of the block's steps, each of so many samples in the seed's order."""
        if block.range not in self._ranges:
            self._ranges[block.range] = self._read_range(block.range)
        order, tokens = self._ranges[block.range]
        rows = [order[(step - 1) * batch : step * batch] for step in block.steps]
        start = int(block.range.partition("-")[0])
        return f"{digest_rows([[row] for row in rows]):016x}", int(sum(tokens[row - start].sum() for row in rows))

    def _read_range(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of the first epoch in their order, and what the training learned of each row of the range."""
        start, end = map(int, name.split("-"))
        tokens, part = np.zeros(end - start, dtype=np.int64), self.outputs.slices.get(name)
        for segment in self.outputs.runs[self.cell].segments:
            for samples in segment.samples() if (segment.facts.range, segment.facts.epoch) == (name, 1) else ():
                places = samples.row_id.astype(np.int64) - start
                is_there = (places >= 0) & (places < tokens.size)
                tokens[places[is_there]] = samples.num_tokens[is_there]
        rows = np.zeros(0, np.int64) if part is None else order_rows(self.outputs.params, part, name, epoch=1)
        return rows, tokens


def check_timed_rows(outputs: Outputs, cell: str) -> Finding | None:
    """Check the tokens per sample in a cell's timed blocks against those of its whole training."""
    measurement = outputs.measurement
    if measurement is None:
        return None
    timed = select_blocks(measurement, cell)
    if not timed:
        return make_unchecked_finding(explain("no_blocks", "{cell}: its timed blocks left no record", cell=cell))
    run, unit = outputs.runs[cell], read_unit(outputs.params.workload)
    trained = run.add_up("num_tokens") / run.add_up("num_samples")
    tokens = sum(block.num_tokens for block in timed) / sum(block.num_samples for block in timed)
    # Not with their padding: packs of one length hide how much a step's rows scatter, but where rows are few.
    per_step = run.steps.num_tokens / run.steps.num_samples
    num_different = len({(block.range, step) for block in timed for step in block.steps})
    error = float(per_step.std() / per_step.mean()) / math.sqrt(num_different)
    allowed = _SHARE_APART + _DEVIATIONS * error
    apart = tokens / trained - 1
    finding = explain(
        "passed",
        "{cell}: {tokens_per_sample:.1f} {unit}s per sample in {steps:plural step} of {ranges}, {of_training:.1f} in "
        "the whole training",
        cell=cell, unit=unit, tokens_per_sample=tokens, steps=num_different, of_training=trained, most_apart=allowed,
        ranges=list(dict.fromkeys(block.range for block in timed)),
    )  # fmt: skip
    if abs(apart) <= allowed:
        return make_finding([], finding)
    return make_failed_finding(
        replace(finding, code="more_tokens" if apart > 0 else "fewer_tokens").extend(
            "{sentence}: {apart:percent} " + ("more" if apart > 0 else "fewer") + ", at most {most_apart:percent} "
            "allowed; the speedup is of other rows than were trained on",
            apart=abs(apart),
        )
    )
