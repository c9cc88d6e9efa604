"""The benchmark of growth: its fit by hand, its made-up comparison, and every part at a small size."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.growth import __main__ as growth
from benchmarks.growth.finished import outputs_of, write_finished
from benchmarks.growth.fit import exponent
from tasks.reporting.collect import collect_results


def test_the_exponent_of_a_power_is_that_power() -> None:
    assert exponent([1, 10, 100], [2.0, 20.0, 200.0]) == pytest.approx(1)
    assert exponent([10, 100, 1_000], [3.0, 300.0, 30_000.0]) == pytest.approx(2)
    assert exponent([1, 10], [5.0, 5.0]) == pytest.approx(0)
    with pytest.raises(ValueError, match="two or more"):
        exponent([10, 10], [1.0, 2.0])


def test_growth_is_called_linear_by_its_steeper_end_and_flat_by_its_ends() -> None:
    def points(seconds: list[float], memory: list[float]) -> dict[int, dict[str, float]]:
        pairs = zip((10, 100, 1_000), seconds, memory, strict=True)
        return {size: {"seconds": one, "memory_mib": other} for size, one, other in pairs}

    assert growth.judgement(points([1, 10, 100], [5, 5, 9])) == ["1.00", "1.00", "yes", "yes"]
    # On the whole linear, in the end quadratic.
    assert growth.judgement(points([1, 1, 100], [5, 5, 105])) == ["1.00", "2.00", "no", "no: +100 MiB"]


def test_the_made_up_comparison_passes_all_gates(tmp_path: Path) -> None:
    write_finished(tmp_path, num_rows=50, epochs=3)
    results = collect_results(outputs_of(tmp_path))
    assert [gate.name for gate in results.gates if gate.verdict == "failed"] == []
    assert [len(cell.epochs) for cell in results.cells] == [3, 3]
    assert not results.is_speedup_withheld


@pytest.mark.slow
def test_every_part_is_timed_at_a_small_size(tmp_path: Path) -> None:
    points = growth.grow(tmp_path, rows=[100], epochs=[2], console=Console(quiet=True))
    assert {part: list(found) for part, found in points.items()} == {
        **{part: [100] for part in growth._BY_ROWS},
        "report_epochs": [2],
    }
    assert all(one["seconds"] > 0 and one["memory_mib"] >= 0 for found in points.values() for one in found.values())
    assert len(growth.rows_of(points)) == 8
    growth.draw(points, growth._LABELS, tmp_path / "chart.svg", over=growth._BY_ROWS)
    assert "<svg" in (tmp_path / "chart.svg").read_text()
