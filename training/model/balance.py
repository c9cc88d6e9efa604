"""Parts in a row, cut into stages of which the costliest is as cheap as can be."""

from collections.abc import Sequence


def balance(costs: Sequence[int], num_stages: int, *, before: int = 0, after: int = 0) -> list[range]:
    """Return which parts each stage has, one after another and at least one each, the costliest as cheap as can be.

    `before`, `after`: what the first and the last stage cost beside their parts. Of equals, earlier stages have more.
    """
    total = [0]
    for cost in costs:
        total.append(total[-1] + cost)
    best: dict[tuple[int, int], tuple[int, int]] = {(0, 0): (0, 0)}
    """(Stages, parts) -> cost of the costliest stage, where the last one begins."""
    for stage in range(1, num_stages + 1):
        extra = (before if stage == 1 else 0) + (after if stage == num_stages else 0)
        for end in range(stage, len(costs) - (num_stages - stage) + 1):
            found = [
                (max(best[stage - 1, start][0], total[end] - total[start] + extra), -start)
                for start in range(stage - 1, end)
                if (stage - 1, start) in best
            ]
            if found:
                cost, start = min(found)
                best[stage, end] = (cost, -start)
    ranges: list[range] = []
    end = len(costs)
    for stage in range(num_stages, 0, -1):
        start = best[stage, end][1]
        ranges.insert(0, range(start, end))
        end = start
    return ranges
