"""Three whole reports as text: every sentence of a report stands in these files, and in no test.

`make golden` writes them anew after sentences were reworded; what it changed is to be read like code.
"""

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.reporting.collect import collect_results
from tests.tasks.reporting.comparison import edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import preflight, with_speedup, write_measurement
from tests.tasks.reporting.rendered import html_of, markdown_of

FOLDER = Path(__file__).parent


def _measure_resolved(folder: Path) -> None:
    write_measurement(folder)


def _measure_noise(folder: Path) -> None:
    write_measurement(folder, with_speedup(1.01, 0.2, preflight=preflight("others use 1.4 of 2 cores")))


def _measure_another_training(folder: Path) -> None:
    write_measurement(folder)
    edit_segment(folder, "2proc", "8-16", parameter_checksums=["05" * 8, "bb"])
    edit_segment(folder, "2proc", data_wait_seconds=1.0, num_tokens=30)


REPORTS: dict[str, Callable[[Path], None]] = {
    "resolved": _measure_resolved,
    "not_resolved": _measure_noise,
    "withheld": _measure_another_training,
}


def render(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield (file, text) of a report: the verdict with report.md, and what the page says."""
    params = write_comparison(folder)
    REPORTS[name](folder)
    results = collect_results(outputs_of(folder, params))
    results = results.model_copy(update={"created_at": "2026-01-01T00:00:00+00:00"})
    yield FOLDER / f"{name}.md", f"{results.label}\n{results.verdict}\n\n{markdown_of(results)}"
    text = html.unescape(re.sub(r"<(style|script)\b.*?</\1>|<[^>]+>", "\n", html_of(results), flags=re.DOTALL))
    yield FOLDER / f"{name}.txt", "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())
