"""Was all exchanged that the strategy has to exchange? What the ranks counted, and torch's own record of it.

What has to be is worked out from the cell and the model (tasks/strategies/), apart from the code that exchanges it.
"""

from typing import NamedTuple

from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
from tasks.records.outputs import Outputs, RunOutputs, SegmentOutputs
from tasks.strategies import Profile, Work, find_profile, sum_expected

_BYTES_PER_GRADIENT = 4


def check_synchronisation(outputs: Outputs, cell: str) -> Finding | None:
    """Check kinds, numbers and bytes of the exchanges of every segment against what its strategy has to exchange."""
    run = outputs.runs[cell]
    profile = find_profile(run.facts.strategy)
    problems: dict[str, list[tuple[Reason, str]]] = {}
    for segment in run.segments:
        found = _find_problem(segment, profile, outputs, cell)
        if found:
            problems.setdefault(found.sentence, []).append((found, segment.title))
    if run.facts.world_size == 1 and not problems:
        return None
    first = run.segments[0]
    works = [_make_segment_work(segment, outputs, cell) for segment in run.segments]
    whole = Work(
        **{
            **vars(works[0]),
            "num_steps": sum(work.num_steps for work in works),
            "num_rounds": (sum(work.num_rounds[0] for work in works), sum(work.num_rounds[1] for work in works)),
        }
    )
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
        "per optimizer step {cell} {traffic}; the gradient has {gradient_mib:three_digits} MiB",
        cell=cell,
        traffic=profile.describe_traffic(_sum_traffic(run), whole),
        gradient_mib=whole.gradient_bytes / 2**20,
        **_collect_numbers(run, profile, _make_segment_work(first, outputs, cell)),
    )


def make_work(
    outputs: Outputs, cell: str, segment: SegmentOutputs, *, num_steps: int, num_rounds: tuple[int, int]
) -> Work:
    """Return what so many steps of a segment are to its strategy."""
    return Work(
        world_size=outputs.runs[cell].facts.world_size,
        num_steps=num_steps,
        num_rounds=num_rounds,
        gradient_bytes=outputs.num_trained * _BYTES_PER_GRADIENT,
        options=outputs.params.cells[cell].options,
        is_exact=outputs.params.train.exact,
        exchange=segment.facts.exchange,
    )


def _make_segment_work(segment: SegmentOutputs, outputs: Outputs, cell: str) -> Work:
    steps, accumulated = segment.facts.num_steps, outputs.runs[cell].facts.grad_accum_steps
    # The last step of a segment may have fewer micro-batches, at least one.
    return make_work(
        outputs, cell, segment, num_steps=steps, num_rounds=((steps - 1) * accumulated + 1, steps * accumulated)
    )


def _find_problem(segment: SegmentOutputs, profile: Profile, outputs: Outputs, cell: str) -> Reason | None:
    work, traffic = _make_segment_work(segment, outputs, cell), segment.facts.traffic
    if found := profile.find_problem(traffic, work):
        return found
    expected = profile.compute_expected_traffic(work) if work.world_size > 1 else {}
    for kind, counted in traffic.items():
        if kind not in expected and counted.number:
            return explain(
                "foreign_collectives", "{number} collectives of the kind {kind}, of which its strategy has none",
                number=counted.number, kind=kind,
            )  # fmt: skip
    for kind, (number, num_bytes) in expected.items():
        counted_number = traffic[kind].number if kind in traffic else 0
        counted_bytes = traffic[kind].num_bytes if kind in traffic else 0
        if not number.has(counted_number):
            return explain(
                "other_number", "{number} collectives of the kind {kind}, {least} to {most} are needed",
                number=counted_number, kind=kind, least=number.least, most=number.most,
            )  # fmt: skip
        if not num_bytes.has(counted_bytes):
            return explain(
                "other_bytes", "{bytes:,} bytes in collectives of the kind {kind}, {least:,} to {most:,} are needed",
                bytes=counted_bytes, kind=kind, least=num_bytes.least, most=num_bytes.most,
            )  # fmt: skip
    return _find_record_problem(segment, profile, outputs, cell)


def _find_record_problem(segment: SegmentOutputs, profile: Profile, outputs: Outputs, cell: str) -> Reason | None:
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
    accumulated = outputs.runs[cell].facts.grad_accum_steps
    most_rounds = recorded.num_steps * accumulated
    least_rounds = most_rounds - accumulated + 1
    expected = sum_expected(
        profile.compute_expected_traffic(
            make_work(
                outputs, cell, segment, num_steps=recorded.num_steps, num_rounds=(least_rounds, most_rounds)
            )
        )
    ).num_bytes  # fmt: skip
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


def _sum_traffic(run: RunOutputs) -> dict[str, "_Sum"]:
    total: dict[str, _Sum] = {}
    for segment in run.segments:
        for kind, counted in segment.facts.traffic.items():
            before = total.get(kind, _Sum(0, 0))
            total[kind] = _Sum(before.number + counted.number, before.num_bytes + counted.num_bytes)
    return total


class _Sum(NamedTuple):
    """What a rank exchanged in all segments."""

    number: int
    num_bytes: int


def _collect_numbers(run: RunOutputs, profile: Profile, work: Work) -> dict[str, float]:
    steps = sum(segment.facts.num_steps for segment in run.segments)
    found: dict[str, float] = {"gradient_bytes": work.gradient_bytes, **profile.list_figures(work)}
    for kind, counted in _sum_traffic(run).items():
        found[f"{kind}s_per_step"] = counted.number / steps
        found[f"{kind}_bytes_per_step"] = counted.num_bytes / steps
    return found
