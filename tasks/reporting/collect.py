"""From what the stages wrote to Results: the figures of every cell, the gates, the verdict."""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tasks.gates.checks import check_gates, compute_standings
from tasks.gates.equivalence import list_equivalences
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
from tasks.reporting.verdict import make_label, make_verdict, name_state

Value = TypeVar("Value")

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
    params, raw, base, machine = outputs.params, outputs.raw, outputs.base_model, outputs.machine
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
            model=ModelFacts(
                name=params.model.name,
                **base.model_dump(include=set(ModelFacts.model_fields) - {"label"}),
                label=replace_unprintable(base.label),
            ),
            dataset=DatasetFacts(
                **raw.model_dump(include=set(DatasetFacts.model_fields) - {"label"}),
                label=replace_unprintable(raw.label),
            ),
            ranges=[_collect_slice(outputs, str(part)) for part in params.ranges],
            heldout=_collect_slice(outputs, params.heldout_name),
            workload=trained.workload,
            unit=read_unit(trained.workload),
            train=dict(_flatten(trained.train)),
            recorded={
                **{name: recorded.get(name, {}) for name in ("versions", "kernels", "environment")},
                "packages": {
                    package: version for setting in settings for package, version in setting.get("packages", {}).items()
                },
            },
            machine=MachineFacts(**machine.model_dump(include=set(MachineFacts.model_fields))),
            trained_at=min(segment.facts.started_at for run in outputs.runs.values() for segment in run.segments),
        ),
        cells=cells,
        left_out={name: replace_unprintable(why) for name, why in outputs.params.left_out.items()},
        quality=_collect_quality(outputs),
        loss_curves=[_collect_loss_curve(cell, run) for cell, run in outputs.runs.items()],
        measurement=outputs.measurement.publish(withheld) if outputs.measurement else None,
        more_ranks=compute_more_ranks(outputs, cells),
        timelines=collect_timelines(outputs.measurement.timelines) if outputs.measurement else [],
        hardware=collect_hardware(outputs.measurement) if outputs.measurement else [],
        cost=compute_cost(outputs, given) if given else None,
    )
    return results.model_copy(update={"verdict": make_verdict(results), "state": name_state(results)})


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield each value by its name, those of a section as `section.name`, a list as its words; none of null."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", ", ".join(value) if isinstance(value, list) else value


def _collect_slice(outputs: Outputs, name: str) -> SliceFacts:
    return SliceFacts(**outputs.slices[name].manifest.model_dump(include=set(SliceFacts.model_fields)))


def _find_largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _collect_cell(outputs: Outputs, cell: str, *, standing: Standing, is_withheld: bool) -> CellResults:
    run, measured = outputs.runs[cell], outputs.measurement
    keys = [(segment.facts.range, segment.facts.epoch) for segment in run.segments]
    figures = functools.partial(_collect_figures, run)
    segments = [figures(part=part, epoch=epoch) for part, epoch in keys]
    whole = figures()
    epochs = list(dict.fromkeys(epoch for _, epoch in keys))
    exchanged = sum(kind.num_bytes for segment in run.segments for kind in segment.facts.traffic.values())
    return CellResults(
        **run.facts.model_dump(include=set(CellResults.model_fields) - {"segments", "nodes"}),
        nodes=[NodeFacts(**node.model_dump(include=set(NodeFacts.model_fields))) for node in run.facts.nodes],
        is_baseline=cell == outputs.params.baseline,
        speed=measured.speeds[cell] if measured else None,
        speedup=measured.speedups.get(cell) if measured and not is_withheld else None,
        standing=standing,
        num_epochs=len(epochs),
        seconds_per_epoch=whole.train_seconds / len(epochs),
        checkpoint_seconds=sum(segment.facts.checkpoint_seconds for segment in run.segments),
        peak_memory_gib=_find_largest(segment.facts.peak_memory_gib for segment in run.segments),
        peak_reserved_gib=_find_largest(segment.facts.peak_reserved_gib for segment in run.segments),
        num_resumes=sum(segment.facts.num_resumes for segment in run.segments),
        micro_batch_sizes=_drop_duplicates(
            [size for segment in run.segments for size in segment.facts.micro_batch_sizes]
        ),
        version_drift=_drop_duplicates([part for segment in run.segments for part in segment.facts.version_drift]),
        slowest_rank=find_slowest_rank(run.steps),
        checkpoints_not_used=[
            replace_unprintable(why) for segment in run.segments for why in segment.facts.checkpoints_not_used
        ],
        exchanged_mib_per_step=exchanged / whole.num_steps / 2**20,
        final_parameter_checksum=run.segments[-1].facts.parameter_checksums[0],
        whole=whole,
        epochs=[figures(epoch=epoch) for epoch in epochs],
        segments=segments,
    )


def _drop_duplicates(values: list[Value]) -> list[Value]:
    return list(dict.fromkeys(values))


def _collect_figures(run: RunOutputs, *, part: str | None = None, epoch: int | None = None) -> Figures:
    """Return the figures of the segments of one range, one epoch, both or (without either) of the whole run."""
    facts = run.parts.get((part, epoch), [])
    seconds = sum(fact.train_seconds for fact in facts)
    num_tokens, num_samples = sum(fact.num_tokens for fact in facts), sum(fact.num_samples for fact in facts)
    return Figures(
        range=part,
        epoch=epoch,
        num_steps=sum(fact.num_steps for fact in facts),
        num_samples=num_samples,
        num_tokens=num_tokens,
        train_seconds=seconds,
        data_wait_share=sum(fact.data_wait_seconds for fact in facts) / seconds,
        tokens_per_second=num_tokens / seconds,
        samples_per_second=num_samples / seconds,
        loss=sum(fact.loss * fact.num_targets for fact in facts) / max(sum(fact.num_targets for fact in facts), 1),
    )


def _collect_quality(outputs: Outputs) -> Quality:
    evaluation = outputs.evaluation
    names = ["base", *outputs.params.cells]
    epochs = _list_accuracies(outputs)
    return Quality(
        heldout=evaluation.heldout,
        num_rows=evaluation.num_rows,
        seq_len=evaluation.seq_len,
        models=[
            ModelQuality(
                model=name,
                perplexity=compute_perplexity(value.loss) if value.accuracy is None else None,
                **value.model_dump(include=set(ModelQuality.model_fields) - {"perplexity"}),
            )
            for name in names
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
        heldout_curves=_collect_heldout_curves(outputs) if outputs.params.train.eval_every_steps else [],
        time_to_loss=compute_time_to_loss(outputs),
        epochs=epochs,
    )


def _list_accuracies(outputs: Outputs) -> list[EpochAccuracy]:
    """Return every cell after each of its segments; none where rows have no class."""
    results = []
    for cell, run in outputs.runs.items():
        evaluated = {(item.range, item.epoch): item for item in outputs.evaluation.epochs.get(cell, [])}
        known = {key: item.accuracy for key, item in evaluated.items() if item.accuracy is not None}
        steps, seconds = 0, 0.0
        for segment in run.segments:
            facts, key = segment.facts, (segment.facts.range, segment.facts.epoch)
            steps, seconds = steps + facts.num_steps, seconds + facts.train_seconds
            if key not in known:
                continue
            results.append(
                EpochAccuracy(
                    cell=cell,
                    range=facts.range,
                    epoch=facts.epoch,
                    step=steps,
                    train_seconds=seconds,
                    train_loss=facts.loss,
                    loss=evaluated[key].loss,
                    accuracy=known[key],
                    accuracy_top5=evaluated[key].accuracy_top5,
                    checkpoint=evaluated[key].checkpoint,
                    # The first of equals: max keeps it.
                    is_best=key == max(known, key=lambda item: known[item]),
                    is_last=segment is run.segments[-1],
                )
            )
    return results


def _collect_heldout_curves(outputs: Outputs) -> list[HeldoutCurve]:
    rows = outputs.slices[outputs.params.heldout_name].manifest.digest
    curves = []
    for cell, run in outputs.runs.items():
        points = [point for segment in run.segments for point in segment.read_heldout_losses(rows)]
        curves.append(HeldoutCurve(cell=cell, steps=[step for step, _ in points], losses=[loss for _, loss in points]))
    return curves


def _collect_loss_curve(cell: str, run: RunOutputs) -> LossCurve:
    at = run.steps.with_loss
    per_point, steps, losses = thin_out_losses(run.steps.step[at], run.steps.loss[at], max_points=_MAX_CURVE_POINTS)
    return LossCurve(cell=cell, steps_per_point=per_point, steps=steps, losses=losses)


def thin_out_losses(
    steps: NDArray[np.int64], losses: NDArray[np.float64], *, max_points: int
) -> tuple[int, list[int], list[float]]:
    """Return (steps per point, last step of each point, mean loss of each point), at most `max_points` points."""
    per_point = max(1, math.ceil(len(steps) / max_points))
    if per_point == 1:
        return 1, steps.tolist(), losses.tolist()
    ends = [min(start + per_point, len(steps)) for start in range(0, len(steps), per_point)]
    means = [float(np.mean(losses[start:end])) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return per_point, [int(steps[end - 1]) for end in ends], means
