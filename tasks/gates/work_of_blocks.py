"""Did the timed blocks do the training's work? What they counted, against the training and, turn by turn, the baseline.

The learning rate of a block is 0, so that its losses and gradients are the base model's in every block of every arm:
the same rows give the same loss to the rounding of sums, however many ranks share them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddp_audit.process.findings import Finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import Reason, explain
from tasks.gates.asked_for import RowsOfSteps
from tasks.gates.synchronisation import make_work
from tasks.records.blocks import ArmBlocks, BlockWork
from tasks.records.measurement import MeasurementFile
from tasks.records.outputs import Outputs, RunOutputs
from training.strategies import Work, find_traits, get_exchange_dtype, sum_expected

_LOSS_TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3, "fp16": 1e-3}
"""Relative difference allowed between the losses of two arms on the same rows.

Each micro-batch runs in the same shapes in every arm, so that right arms were equal to the bit on a CPU, whatever the
precision; a block of other rows was 1e-2 away.
"""
_NORM_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""The same of the gradient's norm, whose sums are over ranks and in another order; by the precision exchanged, too."""
_NORM_TOLERANCE_OF_SHAPES = 2e-2
"""At least that, between batch normalisations of micro-batches of other sizes: the kernels of other shapes round
otherwise, and a ResNet18's normalisations made 1.2e-4 of it in fp32. In fp64 there is no difference to be seen."""
_SAME_ROWS = ("as trained", "wrapped", "data", "silent", "independent")
_SAME_GRADIENT = ("as trained", "wrapped", "data")
_POSITIONS_OF_A_DUMMY = 64
"""A rank without a micro-batch runs one of so few positions at most."""


def check_block_work(outputs: Outputs, cell: str) -> Finding | None:
    """Check rows, tokens, losses, gradients, updates and exchanges of every timed block that the cell's ranks ran."""
    measurement = outputs.measurement
    if measurement is None:
        return None
    mine = [arm for arm in measurement.blocks if arm.cell == cell]
    if not mine:
        template = "{cell}: its timed blocks left no record of what they did"
        return make_unchecked_finding(explain("no_blocks", template, cell=cell))
    judge, problems = _Judge(outputs, measurement, cell), defaultdict[tuple[str, str], list[Reason]](list)
    for arm in mine:
        for block in arm.blocks:
            for problem in judge.find_problems(arm, block):
                problems[arm.arm, problem.code].append(problem)
    return make_finding(
        [
            result[0].extend(
                "{arm}: {sentence}" + " (and so in {other_blocks} other blocks)" * (len(result) > 1),
                arm=arm,
                other_blocks=len(result) - 1,
            )
            for (arm, _), result in problems.items()
        ],
        "{cell}: {blocks:plural block}: " + judge.what_was_held,
        cell=cell,
        baseline=outputs.params.baseline,
        batch=judge.batch,
        blocks=sum(len(arm.blocks) for arm in mine),
        blocks_with_a_problem=len({result.sentence for outcome in problems.values() for result in outcome}),
        largest_loss_difference=judge.largest_loss_difference,
    )


@dataclass
class _Judge:
    """Holds the blocks of one cell against what is known of them."""

    outputs: Outputs
    measurement: MeasurementFile
    cell: str
    largest_loss_difference: float = 0.0

    @property
    def run(self) -> RunOutputs:
        return self.outputs.runs[self.cell]

    def __post_init__(self) -> None:
        self.options: Mapping[str, object] = self.outputs.params.cells[self.cell].options
        self._rows = RowsOfSteps(self.outputs, self.cell)

    @cached_property
    def batch(self) -> int:
        """Samples per step, as measured."""
        return self.measurement.speeds[self.cell].global_batch_size

    @cached_property
    def _parts_of_a_micro_batch(self) -> float:
        """How many of the cell's micro-batches have the rows of one of the baseline's; 1 but for sync_batch."""
        baseline, own = (self.outputs.params.train_of(name) for name in (self.outputs.params.baseline, self.cell))
        return baseline.micro_batch_size / own.micro_batch_size if self.outputs.params.model.norm else 1

    @property
    def _num_micro_batches(self) -> int:
        """Of a step, as measured."""
        return -(-self.batch // self.run.facts.micro_batch_size)

    def _count_dummies(self, cell: str, block: BlockWork) -> int:
        """Return how many micro-batches without rows a cell's ranks ran at most; one step may be partial."""
        shares, batch = self.outputs.params.count_shares(cell), self.measurement.speeds[cell].global_batch_size
        of_a_step = -(-batch // self.outputs.runs[cell].facts.micro_batch_size)
        is_partial = block.num_samples < batch * len(block.steps)
        return -of_a_step % shares * len(block.steps) + (shares - 1) * is_partial

    @cached_property
    def _trained_positions(self) -> Mapping[str, NDArray[np.int64]]:
        """Range -> positions in each step of its first epoch, padding included."""
        first = (part.facts for part in self.run.segments if part.facts.epoch == 1)
        return {facts.range: self.run.steps.num_positions[facts.first_step - 1 : facts.last_step] for facts in first}

    @property
    def is_as_trained(self) -> bool:
        """Whether the measured step is that of the training; in weak scaling it is that of a larger batch."""
        return self.batch == self.run.facts.global_batch_size

    @property
    def what_was_held(self) -> str:
        """What the blocks were held against, where nothing is wrong with them."""
        if self.is_as_trained:
            return (
                "each step had the rows and tokens that the training gave it, the loss "
                "({largest_loss_difference:difference} apart) and gradient of {baseline} on them, its update of all "
                "parameters on every rank, and exchanged what a step of the training does"
            )
        return (
            "each step had the rows and tokens that a step of {batch} samples, weak scaling, has in the order of the "
            "training, a gradient, an update of all parameters, and the exchanges of such a step; no cell has a loss "
            "on the same rows"
        )

    def find_problems(self, arm: ArmBlocks, block: BlockWork) -> Iterator[Reason]:
        """Yield what is wrong with a block."""
        if arm.kind == "update":
            if block.num_samples:
                yield explain(
                    "rows_in_an_update", "{samples} samples in an update alone in turn {turn}",
                    samples=block.num_samples, turn=block.turn,
                )  # fmt: skip
        elif arm.kind == "alone":
            # Of stages that see the same rows the first counts none.
            has_rows_of_its_own = self.outputs.params.count_shares(self.cell) == self.run.facts.world_size
            its = self._by_turn.get((self.cell, "as trained" if has_rows_of_its_own else "independent", block.turn))
            if its is not None and its.rows_of_first_rank != block.rows:
                yield explain(
                    "other_rows_alone", "turn {turn} had other rows than the first rank has beside the others",
                    turn=block.turn,
                )  # fmt: skip
        else:
            yield from self._find_row_problems(block)
        yield from self._find_update_problems(arm, block)
        if arm.kind != "update":
            yield from self._find_gradient_problems(arm, block)
        if arm.kind not in ("tuned", "threads"):
            yield from self._find_exchange_problems(arm, block)

    def _find_row_problems(self, block: BlockWork) -> Iterator[Reason]:
        rows, tokens = self._rows.digest(block, batch=self.batch)
        if rows != block.rows or tokens != block.num_tokens:
            yield explain(
                "other_rows",
                "turn {turn} had {samples} samples with {tokens:,} tokens, not the rows of these {steps:plural step} "
                "of "
                + ("the training" if self.is_as_trained else "{batch} samples") + " ({expected:,} tokens)",
                turn=block.turn, samples=block.num_samples, tokens=block.num_tokens, steps=len(block.steps),
                batch=self.batch, expected=tokens,
            )  # fmt: skip

    def _find_gradient_problems(self, arm: ArmBlocks, block: BlockWork) -> Iterator[Reason]:
        precision, turn, baseline = self.outputs.params.train.precision, block.turn, self.outputs.params.baseline
        if block.loss_sum is None:
            yield explain("loss_not_finite", "turn {turn} had a loss that is not finite", turn=turn)
            return
        if block.grad_norm_sum is not None and not block.grad_norm_sum > 0:
            yield explain(
                "no_gradient", "turn {turn} had a gradient of 0: nothing was learned from its loss", turn=turn
            )
        its = self._by_turn.get((baseline, "as trained", turn))
        if not self.is_as_trained or arm.kind not in _SAME_ROWS:
            return
        if its is None or its.loss_sum is None:
            yield explain(
                "baseline_missing", "turn {turn} has no block of {baseline} to be held against",
                turn=turn, baseline=baseline,
            )  # fmt: skip
            return
        whole = its.num_micro_batches * self._parts_of_a_micro_batch
        # A step that is not full ends with a smaller one.
        bounds = sorted([whole, whole - (self._parts_of_a_micro_batch - 1) * len(block.steps)])
        if not bounds[0] <= block.num_micro_batches <= bounds[1]:
            yield explain(
                "other_micro_batches",
                "turn {turn} ran {micro_batches} micro-batches, {baseline} {of_baseline} on the same steps",
                turn=turn, micro_batches=block.num_micro_batches, baseline=baseline, of_baseline=its.num_micro_batches,
            )  # fmt: skip
        yield from self._find_position_problems(block, its, baseline)
        apart = abs(block.loss_sum / its.loss_sum - 1) if its.loss_sum else abs(block.loss_sum)
        self.largest_loss_difference = max(self.largest_loss_difference, apart)
        if not apart <= _LOSS_TOLERANCE[precision]:
            yield explain(
                "other_loss",
                "turn {turn} had a loss {difference:.1e} away from that of {baseline} on the same steps, at most "
                "{most:.0e} allowed in {precision}",
                turn=turn, difference=apart, baseline=baseline, most=_LOSS_TOLERANCE[precision], precision=precision,
            )  # fmt: skip
        if arm.kind not in _SAME_GRADIENT:
            return
        exchanged = get_exchange_dtype(self.run.facts.strategy, self.options)
        coarser = precision if precision != "fp32" or exchanged == "none" else exchanged
        most_apart = _NORM_TOLERANCE[coarser]
        if self._parts_of_a_micro_batch != 1:
            most_apart = max(most_apart, _NORM_TOLERANCE_OF_SHAPES)
        squares = None if block.moment_squares is None else block.moment_squares / self._count_copies(arm, block)
        for code, template, mine, other, most in (
            ("other_gradient", "turn {turn} had gradients whose norm is", block.grad_norm_sum, its.grad_norm_sum, 1),
            ("other_moments", "turn {turn} left moments whose squares are", squares, its.moment_squares, 2),
        ):
            if mine is not None and other and not (apart := abs(mine / other - 1)) <= most * most_apart:
                yield explain(
                    code, template + " {difference:.1e} away from {baseline}'s, at most {most:.0e} allowed in "
                    "{precision}",
                    turn=turn, difference=apart, baseline=baseline, most=most * most_apart, precision=coarser,
                )  # fmt: skip

    def _find_position_problems(self, block: BlockWork, its: BlockWork, baseline: str) -> Iterator[Reason]:
        """Yield how a block's rows were padded otherwise than in the training, or in the baseline's block."""
        trained = self._trained_positions.get(block.range, np.zeros(0))
        least = int(sum(trained[step - 1 : step].sum() for step in block.steps))
        # A training may not count one of each row, its first, which predicts and is not predicted.
        most_of_dummies = _POSITIONS_OF_A_DUMMY * self._count_dummies(self.cell, block)
        if not least <= block.num_positions <= least + block.num_samples + most_of_dummies:
            yield explain(
                "other_positions",
                "turn {turn} computed {positions:,} positions, the training {trained:,} in the same steps",
                turn=block.turn, positions=block.num_positions, trained=least,
            )  # fmt: skip
        most_of_dummies += _POSITIONS_OF_A_DUMMY * self._count_dummies(baseline, its)
        if self._parts_of_a_micro_batch == 1 and abs(block.num_positions - its.num_positions) > most_of_dummies:
            yield explain(
                "other_padding",
                "turn {turn} computed {positions:,} positions, padding included, {baseline} {of_baseline:,} on the "
                "same steps",
                turn=block.turn, positions=block.num_positions, baseline=baseline, of_baseline=its.num_positions,
            )  # fmt: skip

    def _find_update_problems(self, arm: ArmBlocks, block: BlockWork) -> Iterator[Reason]:
        """Yield what is wrong with the optimizer's updates; one with a gradient that is not finite is left out."""
        if arm.kind != "update" and block.grad_norm_sum is None:
            return
        expected = self._count_copies(arm, block) * self.outputs.num_trained
        for rank, (fewest, most) in enumerate(block.updates):
            if not fewest == most == len(block.steps):
                yield explain(
                    "other_updates",
                    "turn {turn} updated parameters of rank {rank} {fewest} to {most} times, by the optimizer's state, "
                    "in {steps:plural step}",
                    turn=block.turn, rank=rank, fewest=fewest, most=most, steps=len(block.steps),
                )  # fmt: skip
                return
        # More of a rank that rounds its share up, or has a tied parameter that another has as well.
        if block.num_updated < expected:
            yield explain(
                "not_all_updated",
                "turn {turn} updated {updated:,} parameters, all ranks together, {expected:,} are trained",
                turn=block.turn, updated=block.num_updated, expected=expected,
            )  # fmt: skip

    def _count_copies(self, arm: ArmBlocks, block: BlockWork) -> int:
        """Return how many copies of the optimizer's state the ranks that ran hold between them."""
        ranks = len(block.updates)
        if arm.kind in ("wrapped", "independent", "alone", "update"):
            return ranks
        return find_traits(self.run.facts.strategy).count_copies(ranks, self.options).optimizer

    def _find_exchange_problems(self, arm: ArmBlocks, block: BlockWork) -> Iterator[Reason]:
        steps, world_size = len(block.steps), self.run.facts.world_size
        exchanges = arm.kind == "wrapped" or (arm.kind in _SAME_GRADIENT and self.run.facts.strategy != "single")
        if not exchanges:
            if any(block.num_exchanges):
                yield explain(
                    "exchanges_where_none_belong", "turn {turn} exchanged gradients {exchanges} times, 0 expected",
                    turn=block.turn, exchanges=sum(block.num_exchanges),
                )  # fmt: skip
            return
        if arm.kind == "wrapped":
            gradient_bytes = self.outputs.num_trained * 4
            work = Work(
                world_size=1, num_steps=steps, num_rounds=(steps, steps), gradient_bytes=gradient_bytes,
                exchange={"bucket_bytes": [gradient_bytes]},
            )  # fmt: skip
            strategy = "ddp"
        else:
            rounds = steps * (-(-self._num_micro_batches // self.run.facts.world_size))
            first, strategy = self.run.segments[0], self.run.facts.strategy
            work = make_work(self.outputs, self.cell, first, num_steps=steps, num_rounds=(rounds, rounds))
        expected = sum_expected(find_traits(strategy).compute_expected_traffic(work))
        if arm.kind != "wrapped" and not all(map(expected.number.has, block.num_exchanges)):
            yield explain(
                "other_exchanges",
                "turn {turn} exchanged gradients {exchanges:g} times, the training {expected:g} times in as many steps",
                turn=block.turn, exchanges=block.num_exchanges, expected=expected.number.least,
            )  # fmt: skip
            return
        if block.exchange_bytes is None:
            return
        if not all(map(expected.num_bytes.has, block.exchange_bytes)):
            yield explain(
                "other_bytes",
                "turn {turn} exchanged {bytes:,.0f} bytes per step on a rank, {needed:,.0f} are needed on each of "
                "{ranks}",
                turn=block.turn, bytes=min(block.exchange_bytes) / steps, needed=expected.num_bytes.least / steps,
                ranks=world_size,
            )  # fmt: skip

    @cached_property
    def _by_turn(self) -> dict[tuple[str, str, int], BlockWork]:
        """(cell, kind, turn) -> the block."""
        return {(arm.cell, arm.kind, block.turn): block for arm in self.measurement.blocks for block in arm.blocks}
