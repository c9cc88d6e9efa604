"""From what the stages wrote to Results: the figures of every cell, the gates, the verdict."""

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.gates.checks import check_gates, compute_standings
from tasks.gates.equivalence import list_equivalences
from tasks.inputs.snapshot import walk_leaves
from tasks.params.choices import read_unit
from tasks.process.wording import replace_unprintable
from tasks.records.evaluation import EvaluatedSample, compute_perplexity
from tasks.records.facts import ComparisonFacts, DatasetFacts, MachineFacts, ModelFacts, NodeFacts, SliceFacts
from tasks.records.gate import Standing
from tasks.records.outputs import Outputs, RunOutputs
from tasks.reporting.cell_results import CellResults, Figures
from tasks.reporting.cost import compute_cost
from tasks.reporting.more_ranks import compute_more_ranks
from tasks.reporting.results import EpochAccuracy, HeldoutCurve, LossCurve, ModelQuality, Quality, Results
from tasks.reporting.straggler import find_slowest_rank
from tasks.reporting.time_to_loss import compute_time_to_loss
from tasks.reporting.timeline import collect_hardware, collect_timelines
from tasks.reporting.verdict import judge_speedups, make_label, make_verdict, name_state

_MAX_CURVE_POINTS = 1000


def collect_results(outputs: Outputs) -> Results:
    """Return everything the comparison found; the speedup of a cell is None where one of its gates failed."""
    gates = check_gates(outputs)
    standings = compute_standings(gates, list(outputs.runs), is_measured=outputs.measurement is not None)
    withheld = {cell for cell, result in standings.items() if result.state == "withheld"}
    if outputs.others and withheld >= outputs.others.keys():
        # With nothing beside it, not even the baseline's own 1.00x says anything.
        withheld.add(outputs.params.baseline)
    cells = [
        _collect_cell(outputs, cell, standing=standings[cell], is_withheld=cell in withheld)
        for cell in outputs.params.cells
    ]
    given = [cell for cell in cells if cell.cell not in withheld]
    params, raw, base, measurement = outputs.params, outputs.raw, outputs.base_model, outputs.measurement
    trained = outputs.baseline.facts
    # The gate "Same work in every cell" holds all others against it.
    recorded = next(iter(outputs.baseline.segments[0].facts.settings), {})
    settings = [setting for run in outputs.runs.values() for part in run.segments for setting in part.facts.settings]
    results = Results(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        name=outputs.params.name,
        description=replace_unprintable(outputs.params.description),
        verdict="",
        label=make_label(outputs),
        gates=gates,
        equivalence=list_equivalences(outputs),
        comparison=ComparisonFacts(
            model=ModelFacts.take_from(base, name=params.model.name, label=replace_unprintable(base.label)),
            dataset=DatasetFacts.take_from(raw, label=replace_unprintable(raw.label)),
            ranges=[SliceFacts.take_from(outputs.slices[str(part)].manifest) for part in params.ranges],
            heldout=SliceFacts.take_from(outputs.heldout),
            workload=trained.workload,
            unit=read_unit(trained.workload),
            train={
                name: ", ".join(value) if isinstance(value, list) else value
                for name, value in walk_leaves(trained.train)
                if value is not None
            },
            recorded={
                **{name: recorded.get(name, {}) for name in ("versions", "kernels", "environment")},
                "packages": {
                    package: version for setting in settings for package, version in setting.get("packages", {}).items()
                },
            },
            machine=MachineFacts.take_from(outputs.machine),
            trained_at=min(segment.facts.started_at for run in outputs.runs.values() for segment in run.segments),
        ),
        cells=cells,
        left_out={name: replace_unprintable(why) for name, why in outputs.params.left_out.items()},
        quality=_collect_quality(outputs),
        loss_curves=[
            make_loss_curve(cell, run.steps.step[at], run.steps.loss[at])
            for cell, run in outputs.runs.items()
            for at in [run.steps.with_loss]
        ],
        measurement=measurement and measurement.publish(withheld),
        more_ranks=compute_more_ranks(outputs, cells),
        timelines=collect_timelines(measurement.timelines) if measurement else [],
        hardware=collect_hardware(measurement) if measurement else [],
        cost=compute_cost(outputs, given) if given else None,
    )
    results = judge_speedups(results)
    return results.model_copy(update={"verdict": make_verdict(results), "state": name_state(results)})


def _collect_cell(outputs: Outputs, cell: str, *, standing: Standing, is_withheld: bool) -> CellResults:
    run, measured = outputs.runs[cell], outputs.measurement
    facts = [segment.facts for segment in run.segments]
    whole = _collect_figures(run)
    epochs = list(dict.fromkeys(fact.epoch for fact in facts))
    exchanged = sum(kind.num_bytes for fact in facts for kind in fact.traffic.values())
    peaks: dict[str, Any] = {
        name: max((peak for fact in facts if (peak := getattr(fact, name)) is not None), default=None)
        for name in ("peak_memory_gib", "peak_reserved_gib")
    }
    return CellResults(
        **run.facts.model_dump(include=set(CellResults.model_fields) - {"segments", "nodes"}),
        **peaks,
        nodes=[NodeFacts.take_from(node) for node in run.facts.nodes],
        is_baseline=cell == outputs.params.baseline,
        speed=measured.speeds[cell] if measured else None,
        speedup=measured.speedups.get(cell) if measured and not is_withheld else None,
        standing=standing,
        num_epochs=len(epochs),
        seconds_per_epoch=whole.train_seconds / len(epochs),
        checkpoint_seconds=run.add_up("checkpoint_seconds"),
        num_resumes=run.add_up("num_resumes"),
        micro_batch_sizes=list(dict.fromkeys(size for fact in facts for size in fact.micro_batch_sizes)),
        version_drift=list(dict.fromkeys(part for fact in facts for part in fact.version_drift)),
        slowest_rank=find_slowest_rank(run.steps),
        checkpoints_not_used=[replace_unprintable(why) for fact in facts for why in fact.checkpoints_not_used],
        exchanged_mib_per_step=exchanged / whole.num_steps / 2**20,
        final_parameter_checksum=facts[-1].parameter_checksums[0],
        whole=whole,
        epochs=[_collect_figures(run, epoch=epoch) for epoch in epochs],
        segments=[_collect_figures(run, part=fact.range, epoch=fact.epoch) for fact in facts],
    )


def _collect_figures(run: RunOutputs, *, part: str | None = None, epoch: int | None = None) -> Figures:
    """Return the figures of the segments of one range, one epoch, both or (without either) of the whole run."""
    sums = {
        name: run.add_up(name, part, epoch)
        for name in ("num_steps", "num_samples", "num_tokens", "train_seconds", "data_wait_seconds", "num_targets")
    }
    seconds, targets = sums["train_seconds"], sums.pop("num_targets")
    return Figures(
        range=part,
        epoch=epoch,
        data_wait_share=sums.pop("data_wait_seconds") / seconds,
        tokens_per_second=sums["num_tokens"] / seconds,
        samples_per_second=sums["num_samples"] / seconds,
        loss=sum(fact.loss * fact.num_targets for fact in run.parts.get((part, epoch), [])) / max(targets, 1),
        **sums,
    )


def _collect_quality(outputs: Outputs) -> Quality:
    evaluation = outputs.evaluation
    points = {
        cell: [point for segment in run.segments for point in segment.read_heldout_losses(outputs.heldout.digest)]
        for cell, run in outputs.runs.items()
        if outputs.params.train.eval_every_steps
    }
    return Quality(
        heldout=evaluation.heldout,
        num_rows=evaluation.num_rows,
        seq_len=evaluation.seq_len,
        models=[
            ModelQuality.take_from(
                value, model=name, perplexity=compute_perplexity(value.loss) if value.accuracy is None else None
            )
            for name in ("base", *outputs.params.cells)
            if (value := evaluation.models.get(name)) is not None
        ],
        samples=[
            EvaluatedSample(
                row_id=sample.row_id,
                prompt=replace_unprintable(sample.prompt),
                reference=replace_unprintable(sample.reference),
                continuations={name: replace_unprintable(text) for name, text in sample.continuations.items()},
            )
            for sample in evaluation.samples
        ],
        heldout_curves=[
            HeldoutCurve(cell=cell, steps=[step for step, _ in curve], losses=[loss for _, loss in curve])
            for cell, curve in points.items()
        ],
        time_to_loss=compute_time_to_loss(outputs),
        epochs=_list_accuracies(outputs),
    )


def _list_accuracies(outputs: Outputs) -> list[EpochAccuracy]:
    """Return every cell after each of its segments; none where rows have no class."""
    results = []
    for cell, run in outputs.runs.items():
        evaluated = {
            (item.range, item.epoch): item
            for item in outputs.evaluation.epochs.get(cell, [])
            if item.accuracy is not None
        }
        steps, seconds = 0, 0.0
        for segment in run.segments:
            facts, key = segment.facts, (segment.facts.range, segment.facts.epoch)
            steps, seconds = steps + facts.num_steps, seconds + facts.train_seconds
            if key in evaluated:
                results.append(
                    EpochAccuracy.take_from(
                        evaluated[key],
                        cell=cell,
                        step=steps,
                        train_seconds=seconds,
                        train_loss=facts.loss,
                        # The first of equals: max keeps it.
                        is_best=key == max(evaluated, key=lambda item: evaluated[item].accuracy or 0.0),
                        is_last=segment is run.segments[-1],
                    )
                )
    return results


def make_loss_curve(
    cell: str, steps: NDArray[np.int64], losses: NDArray[np.float64], *, max_points: int = _MAX_CURVE_POINTS
) -> LossCurve:
    """Return the cell's curve of so many points at most, each the mean of as many steps but the last."""
    per_point = max(1, math.ceil(len(steps) / max_points))
    starts = np.arange(0, len(steps), per_point)
    ends = np.minimum(starts + per_point, len(steps))
    means = [float(losses[start:end].mean()) for start, end in zip(starts, ends, strict=True)]
    return LossCurve(cell=cell, steps_per_point=per_point, steps=steps[ends - 1].tolist(), losses=means)
