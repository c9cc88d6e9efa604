"""`make bench-growth`: seconds and memory of a comparison's parts against rows, steps, epochs.

Writes benchmarks/results/<date>_<machine>_growth.{json,md}.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import linear_regression

from rich.console import Console
from rich.table import Table

from benchmarks.growth.parts import PARTS, ROWS_PER_STEP, SEQ_LEN, rows_file
from benchmarks.results_file import RESULTS, write_results
from benchmarks.throughput.groups import Setup
from tasks.records.manifests import BaseModelManifest
from training.process.files import digest_file, digest_json, write_json

_PROJECT = Path(__file__).resolve().parent.parent.parent
_LABELS = {
    "download": "rows read, checked and placed",
    "slice": "rows tokenised",
    "plan": "epoch planned (set-up of a training)",
    "step": "20 optimizer steps",
    "record": "record of an epoch: ledger and step lines",
    "checkpoint": "checkpoint at its end",
    "report": "gates and report, 2 cells",
    "report_epochs": "gates and report by epochs, 2 cells",
    "log_points": "log points, by steps",
}
_BY_ROWS = ("download", "slice", "plan", "step", "record", "checkpoint", "report")
_UNITS = {"report_epochs": "epoch", "log_points": "step"}
"""Of the parts that do not grow with rows."""
_LINEAR = 1.1
"""An exponent up to which growth is called linear: what is left is for caches and noise."""
_MOST_MIB = 64.0
"""What the largest size may take more than the smallest."""
_EPOCHS = (10, 100, 1_000)
_STEPS = (100, 1_000, 10_000, 100_000)
_HEADINGS = ["part", "size", "seconds", "MiB", "exponent", "last exponent", "linear or better", "more memory"]
_HEADINGS += [f"at most {_MOST_MIB:.0f} MiB more"]
Points = dict[str, dict[int, dict[str, float]]]
"""Part -> size -> seconds and memory_mib."""


def short_texts(num_rows):
    """Yield short texts without end of the built-in corpus: its sentences over and over, each with a number."""
    from tasks.data.builtin.corpus import read_corpus

    sentences = [row[start : start + 80] for row in itertools.islice(read_corpus(), 500) for start in (0, 80)]
    sentences = [text.strip() for text in sentences if text.strip()]
    for number in range(num_rows):
        yield f"{number} {sentences[number % len(sentences)]}"


def write_texts(file, num_rows):
    """Write the texts as a data set, in batches."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts, schema = short_texts(num_rows), pa.schema([("text", pa.string())])
    with pq.ParquetWriter(file, schema) as writer:
        while batch := list(itertools.islice(texts, 10_000)):
            writer.write_table(pa.table({"text": batch}, schema=schema))


def ready(work, num_rows):
    """Place what the parts begin with: texts, the built-in model, what a training is told."""
    from tasks.data.builtin.corpus import read_corpus
    from tasks.data.builtin.tiny_models import NUM_TOKENIZER_ROWS, write_tiny_qwen2

    work.mkdir(parents=True, exist_ok=True)
    write_texts(rows_file(work), num_rows)
    write_tiny_qwen2(work / "model", itertools.islice(read_corpus(), NUM_TOKENIZER_ROWS))
    files = {file.name: digest_file(file) for file in (work / "model").iterdir()}
    BaseModelManifest(
        source="builtin:tiny-qwen2", kind="builtin", revision=None, commit=None, label="", num_parameters=0,
        model_type="qwen2", is_random_weights=True, digest=digest_json(files), files=files,
    ).write(work / "model")  # fmt: skip
    setup = Setup(
        name="growth", model_dir=work / "model", slice_dir=work / "slice", num_rows=num_rows, world_size=1,
        global_batch_size=ROWS_PER_STEP, seq_len=SEQ_LEN, steps_per_block=1,
    )  # fmt: skip
    write_json(work / "training.json", setup.training(work) | {"micro_batch_size": 4})


def measure(part, work, size):
    """Return the seconds and memory_mib of a part, from a process of its own. Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "benchmarks.growth.parts", part, "--work", str(work), "--size", str(size)]
    environment = {**os.environ, "PYTHONPATH": str(_PROJECT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{part} at {size}: {done.stderr[-2_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def grow(folder, *, rows, epochs, steps, console):
    """Return every part at every size; steps are those of the smallest slice, over and over."""
    points = {part: {} for part in PARTS}
    for size in rows:
        work = folder / f"rows-{size}"
        ready(work, size)
        for part in _BY_ROWS:
            points[part][size] = measure(part, work, size)
            console.print(f"{_LABELS[part]}, {size:,} rows: {_shown(points[part][size])}", highlight=False)
    for number in epochs:
        work = folder / f"epochs-{number}"
        work.mkdir(parents=True)
        points["report_epochs"][number] = measure("report_epochs", work, number)
        console.print(f"{number:,} epochs: {_shown(points['report_epochs'][number])}", highlight=False)
    for number in steps:
        points["log_points"][number] = measure("log_points", folder / f"rows-{rows[0]}", number)
        console.print(f"log points of {number:,} steps: {_shown(points['log_points'][number])}", highlight=False)
    return points


def exponent(sizes, values):
    """Return b of value = a * size^b through the points, by least squares of the logarithms; 1.0 is linear."""
    return linear_regression([math.log(size) for size in sizes], [math.log(value) for value in values]).slope


def rows_of(points):
    """Return the table: a row per part and size, the judgement beside the largest."""
    rows = []
    for part, point in points.items():
        sizes = sorted(point)
        for size in sizes:
            unit, result = _UNITS.get(part, "row"), point[size]
            judged = judgement(point, unit) if size == sizes[-1] and len(sizes) > 1 else [""] * 5
            rows.append(
                [_LABELS[part], f"{size:,} {unit}s", f"{result['seconds']:.3f}", f"{result['memory_mib']:.0f}", *judged]
            )
    return rows


def judgement(results, unit):
    """Return both exponents of the seconds and whether the steeper one is linear; what memory grows by and whether
    that is little."""
    sizes = sorted(results)
    seconds = [results[size]["seconds"] for size in sizes]
    whole, last = exponent(sizes, seconds), exponent(sizes[-2:], seconds[-2:])
    more = results[sizes[-1]]["memory_mib"] - results[sizes[0]]["memory_mib"]
    is_linear, is_little = max(whole, last) <= _LINEAR, more <= _MOST_MIB
    grown = f"{round(more):+d} MiB, {round(more * 2**20 / (sizes[-1] - sizes[0])):+,d} B per {unit}"
    return [f"{whole:.2f}", f"{last:.2f}", "yes" if is_linear else "no", grown, "yes" if is_little else "no"]


def _shown(results):
    return f"{results['seconds']:.3f} s, {results['memory_mib']:.0f} MiB"


_METHOD = (
    "Short texts made of the built-in corpus (about 80 characters, each row different), the built-in model, "
    f"{ROWS_PER_STEP} rows per step. Every figure is of one run in a process of its own; imports and what a part needs "
    "from earlier ones are outside its clock, and memory is the most that was resident beyond that. Exponent: slope of "
    "log seconds over log size, of all sizes and of the last two; up to 1.1 counts as linear. More memory: at the "
    "largest size than at the smallest; what takes more bytes per row goes on growing beyond them. Optimizer steps, "
    "record, checkpoint and log points (all that is done for a step outside of it) are those of one rank; "
    "the report's comparisons are made up (benchmarks/growth/finished.py), and all of their gates pass."
)


def _main():
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--epochs", type=int, nargs="*", default=list(_EPOCHS))
    parser.add_argument("--steps", type=int, nargs="*", default=list(_STEPS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console, load_before = Console(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        points = grow(
            Path(scratch), rows=arguments.rows, epochs=arguments.epochs, steps=arguments.steps, console=console
        )
    table = Table(*_HEADINGS, title="Growth")
    for row in rows_of(points):
        table.add_row(*row)
    console.print(table)
    path = write_results(
        "growth", title="How cost grows", method=_METHOD, headings=_HEADINGS, rows=rows_of(points),
        summary="Not claimed: anything about other machines.", results={"points": points},
        load_before=load_before, folder=arguments.results,
    )  # fmt: skip
    console.print(f"written: {path}")


if __name__ == "__main__":
    _main()
