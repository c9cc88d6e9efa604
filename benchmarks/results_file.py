"""benchmarks/results/<date>_<machine>_<benchmark>.{json,md}: what a benchmark found, and on what."""

import datetime
import re
from pathlib import Path

from tasks.machine.facts import collect_machine_facts
from training.process.files import write_json

RESULTS = Path(__file__).resolve().parent / "results"


def write_results(benchmark, *, title, method, headings, rows, summary, results, load_before, folder=RESULTS):
    """Write both files; return the markdown. `load_before`: load average of a minute when the benchmark began."""
    machine = collect_machine_facts().content(exclude={"digest"})
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    slug = re.sub(r"[^a-z0-9]+", "-", f"{machine['num_cpus']}x {machine['cpu']}".lower()).strip("-")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    lines = [
        f"# {title}, {date}",
        "",
        f"{machine['cpu']}, {machine['num_cpus']} CPUs, {machine['os']}; {versions}. Load average of a minute when it "
        f"began: {load_before:.1f}.",
        "",
        method,
        "",
        f"| {' | '.join(headings)} |",
        f"|{' --- |' * len(headings)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        summary,
    ]
    path = folder / f"{date}_{slug}_{benchmark}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_json(
        path.with_suffix(".json"), {"date": date, "machine": machine, "load_before": load_before, "found": results}
    )
    return path
