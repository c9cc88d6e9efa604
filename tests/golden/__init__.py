"""Five whole reports as text: every sentence of a report stands in these files, and in no test.

`make golden` writes them anew after sentences were reworded; what it changed is to be read like code.
"""

import html
import re
from pathlib import Path

from tasks.reporting.collect import collect_results
from tasks.reporting.history_file import add_history
from tests.tasks.reporting.comparison import PARAMS, THREE_CELLS, edit_json, edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import (
    advice,
    arm,
    estimate,
    measurement,
    preflight,
    waterfall,
    with_speedup,
    write_measurement,
)
from tests.tasks.reporting.rendered import html_of, markdown_of

FOLDER = Path(__file__).parent
_HISTORY = "history.csv"
_PRICE = {"price_per_gpu_hour": 2.5, "price_date": "2026-11-01", "price_source": "an offer"}


def _measure_well(folder):
    params = write_comparison(folder)
    write_measurement(folder)
    return params


def _measure_noise(folder):
    params = write_comparison(folder)
    write_measurement(folder, with_speedup(1.01, 0.2, preflight=preflight(is_fit=False)))
    return params


def _measure_another_training(folder):
    params = _measure_well(folder)
    edit_segment(folder, "2proc", "8-16", parameter_checksums=["05" * 8, "bb"])
    edit_segment(folder, "2proc", data_wait_seconds=1.0, num_tokens=30)
    return params


def _measure_nothing(folder):
    """With a price and a loss that nobody comes to."""
    return write_comparison(folder, params=PARAMS | {"cost": _PRICE, "quality": {"target_loss": 3.0}})


def _measure_three(folder):
    """One of three cells has too few CPUs; the others say all that a report can have a line of."""
    seconds = {"1proc": [6.0, 4.0], "2proc": [4.0, 2.4], "4proc": [2.5, 1.5]}
    params = write_comparison(folder, params=THREE_CELLS | {"cost": _PRICE}, seconds=seconds)
    one, four = arm("1proc", 1), arm("4proc", 4, seconds=0.025)
    write_measurement(folder, measurement(one, arm("2proc", 2), four))
    outputs = outputs_of(folder, params)
    before = collect_results(outputs).model_copy(update={"created_at": "2025-12-31T00:00:00+00:00"})
    add_history(before, outputs, folder / _HISTORY)
    edit_json(folder / "runs/2proc/run.json", micro_batch_size=2)
    broken = ["step-00000005: state.pt has 3 bytes, the receipt says 9"]
    edit_segment(folder, "2proc", micro_batch_sizes=[1], version_drift=["torch 2.14.0, then 2.15.0"], num_resumes=2)
    edit_segment(folder, "2proc", checkpoints_not_used=broken)
    two = arm(
        "2proc", 2, seconds=0.05, of_medians=1.5, mfu=0.412,
        mfu_palm=0.431, gpu_utilisation=0.93, gpu_watts=512.0, joules_per_token=0.0128, peak_memory_gib=20.5,
    )  # fmt: skip
    tried = advice().model_copy(update={"failed": ["layers compiled (RuntimeError: no <b>compiler</b>)"]})
    found = measurement(
        one, two, four, waterfalls=[waterfall(), waterfall("4proc")], advice=tried, gpu_slowed_share=0.25,
        beside={"1proc with 2 threads": estimate(1.3)},
        waits=["2stages: its ranks wait for each other 35 % of the passes."],
    )  # fmt: skip
    write_measurement(folder, found)
    return params


REPORTS = {
    "proven": _measure_well,
    "unproven": _measure_noise,
    "withheld": _measure_another_training,
    "unmeasured": _measure_nothing,
    "three": _measure_three,
}


def render(name, folder):
    """Yield (file, text) of a report: the verdict with report.md, and what the page says."""
    outputs = outputs_of(folder, REPORTS[name](folder))
    results = collect_results(outputs).model_copy(update={"created_at": "2026-01-01T00:00:00+00:00"})
    if (folder / _HISTORY).exists():
        results = add_history(results, outputs, folder / _HISTORY)
    yield FOLDER / f"{name}.md", f"{results.label}\n{results.verdict}\n\n{markdown_of(results)}"
    text = html.unescape(re.sub(r"<(style|script)\b.*?</\1>|<[^>]+>", "\n", html_of(results), flags=re.DOTALL))
    yield FOLDER / f"{name}.txt", "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())
