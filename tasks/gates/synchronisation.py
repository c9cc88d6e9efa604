"""Was all exchanged that the strategy has to exchange? What the ranks counted, and torch's own record of it.

What has to be is worked out from the cell and the model (training/strategies/), apart from the code that exchanges it.
"""

from collections import Counter

from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
from tasks.records.outputs import Outputs, SegmentOutputs
from training.record.segment_facts import Exchanged
from training.strategies import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    SEND,
    STATISTIC,
    StrategyTraits,
    Work,
    find_traits,
    sum_expected,
)

_BYTES_PER_GRADIENT = 4
_WORDS = {
    ALL_REDUCE: "all-reduces", ALL_GATHER: "all-gathers", REDUCE_SCATTER: "reduce-scatters", BROADCAST: "broadcasts",
    STATISTIC: "exchanges of what batch normalisation is over", SEND: "messages to other stages",
}  # fmt: skip


def check_synchronisation(outputs: Outputs, cell: str) -> Finding | None:
    """Check kinds, numbers and bytes of the exchanges of every segment against what its strategy has to exchange."""
    run = outputs.runs[cell]
    traits = find_traits(run.facts.strategy)
    problems: dict[str, list[tuple[Reason, str]]] = {}
    for segment in run.segments:
        problem = _find_problem(segment, traits, outputs, cell)
        if problem:
            problems.setdefault(problem.sentence, []).append((problem, segment.title))
    if run.facts.world_size == 1 and not problems:
        return None
    work, steps = make_work(outputs, cell, run.segments[0]), run.add_up("num_steps")
    layout, of_layout = traits.describe_layout(work)
    figures: dict[str, float] = {"gradient_bytes": work.gradient_bytes, **of_layout}
    per_step, bytes_per_step = Counter[str](), Counter[str]()
    for segment in run.segments:
        for kind, counted in segment.facts.traffic.items():
            per_step[kind] += counted.number
            bytes_per_step[kind] += counted.num_bytes
    for kind, number in per_step.items():
        figures |= {f"{kind}s_per_step": number / steps, f"{kind}_bytes_per_step": bytes_per_step[kind] / steps}
    return make_finding(
        # Each once, with the first segment that has it and the number of others.
        [
            alike[0][0].extend(
                "{where}" + " and {other_segments:plural other segment}" * (len(alike) > 1) + ": {sentence}",
                where=alike[0][1],
                other_segments=len(alike) - 1,
            )
            for alike in problems.values()
        ],
        "per optimizer step {cell} {traffic} for {layout}; the gradient has {gradient_mib:three_digits} MiB",
        cell=cell,
        traffic=", ".join(f"{number / steps:g} {_WORDS.get(kind, kind)}" for kind, number in sorted(per_step.items())),
        layout=layout,
        gradient_mib=work.gradient_bytes / 2**20,
        **figures,
    )


def make_work(
    outputs: Outputs, cell: str, segment: SegmentOutputs, *, num_steps: int | None = None,
    num_rounds: tuple[int, int] | None = None,
) -> Work:  # fmt: skip
    """Return what so many steps of a segment are to its strategy; by default all.

    The last step of a segment may have fewer micro-batches, at least one.
    """
    facts, steps = outputs.runs[cell].facts, num_steps or segment.facts.num_steps
    most = steps * facts.grad_accum_steps
    return Work(
        world_size=facts.world_size,
        num_steps=steps,
        num_rounds=num_rounds or (most - facts.grad_accum_steps + 1, most),
        gradient_bytes=outputs.num_trained * _BYTES_PER_GRADIENT,
        options=outputs.params.cells[cell].options,
        is_exact=outputs.params.train.exact,
        exchange=segment.facts.exchange,
    )


def _find_problem(segment: SegmentOutputs, traits: StrategyTraits, outputs: Outputs, cell: str) -> Reason | None:
    work, traffic = make_work(outputs, cell, segment), segment.facts.traffic
    if work.world_size == 1:
        # Wrapped in DDP, say, a baseline pays for an exchange with itself.
        number = sum(kind.number for kind in traffic.values())
        return explain("one_rank_exchanged", "one rank, yet {number} exchanges", number=number) if number else None
    if problem := traits.explain_wrong_layout(work):
        return problem
    expected = traits.compute_expected_traffic(work)
    for kind in sorted({*expected, *traffic}):
        counted, needed = traffic.get(kind, Exchanged()), expected.get(kind)
        number, num_bytes = counted.number, counted.num_bytes
        if needed is None and number:
            return explain(
                "foreign_collectives", "{number} exchanges of the kind {kind}, of which its strategy has none",
                number=number, kind=kind,
            )  # fmt: skip
        if needed is not None and not needed.number.has(number):
            accumulated = outputs.runs[cell].facts.grad_accum_steps
            per_step, least, most = number / work.num_steps, *needed.number
            is_every = accumulated > 1 and least == most and number >= least // work.num_steps * work.num_rounds[0]
            return explain(
                "too_few_exchanges" if number < least
                else "exchanged_on_every_micro_batch" if is_every
                else "too_many_exchanges",
                "{number:,} exchanges of the kind {kind} in {steps:plural step}, {per_step:g} per step, where "
                + ("{least:,}" if least == most else "{least:,} to {most:,}") + " are needed"
                + ": synchronised on every of {micro_batches} micro-batches" * is_every,
                number=number, kind=kind, steps=work.num_steps, per_step=per_step, least=least, most=most,
                micro_batches=accumulated,
            )  # fmt: skip
        if needed is not None and not needed.has_bytes(number, num_bytes):
            least, most = needed.num_bytes
            return explain(
                "other_bytes",
                "{bytes:,} bytes in exchanges of the kind {kind}, "
                + ("{least:,}" if least == most else "{least:,} to {most:,}") + " are needed",
                bytes=num_bytes, kind=kind, least=least, most=most,
            )  # fmt: skip
    return _find_record_problem(segment, traits, outputs, cell)


def _find_record_problem(segment: SegmentOutputs, traits: StrategyTraits, outputs: Outputs, cell: str) -> Reason | None:
    """Return what torch's own record of the last steps' collectives says against what the steps counted."""
    recorded = segment.facts.recorded_exchanges
    if recorded is None or outputs.runs[cell].facts.world_size == 1:
        return None
    if recorded.number != recorded.counted_number:
        return explain(
            "not_all_counted",
            "torch recorded {recorded} exchanges in the last {steps:plural step}, {counted} were counted",
            recorded=recorded.number, steps=recorded.num_steps, counted=recorded.counted_number,
        )  # fmt: skip
    work = make_work(outputs, cell, segment, num_steps=recorded.num_steps)
    expected = sum_expected(traits.compute_expected_traffic(work)).num_bytes
    for code, what, other, is_right in (
        ("other_bytes_recorded", "needed", expected.least, expected.has(recorded.num_bytes)),
        ("not_all_bytes_counted", "counted", recorded.counted_bytes, recorded.num_bytes == recorded.counted_bytes),
    ):
        if not is_right:
            return explain(
                code,
                "the exchanges of the last {steps:plural step} were given {recorded:,} bytes by torch's record, "
                "{expected:,} " + ("are " if what == "needed" else "were ") + what,
                steps=recorded.num_steps, recorded=recorded.num_bytes, expected=other,
            )  # fmt: skip
    return None
