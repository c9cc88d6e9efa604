"""Whether the machine was fit to measure on."""

from tasks.process import wording
from tasks.reporting.blocks import Block, Text, tabulate
from tasks.reporting.results import Results

TITLE = "Preflight"


def make_blocks(results: Results) -> list[Block]:
    """Return what was looked at before measuring, or that nothing was."""
    if results.measurement is None:
        return [Text(wording.UNMEASURED)]
    preflight = results.measurement.preflight
    if not preflight.checks:
        return [Text(f"The machine was {preflight.verdict}; no check was recorded.")]
    warnings = [check.name for check in preflight.checks if check.verdict == "warning"]
    because = f": {wording.join_names(warnings)}" if warnings else ""
    table = tabulate(
        "The machine before measuring",
        [
            ("Looked at", lambda check: check.name),
            ("Finding", lambda check: check.verdict),
            ("Found", lambda check: check.found),
            ("Remedy", lambda check: check.remedy or ""),
        ],
        preflight.checks,
        num_prose=3,
    )
    return [Text(f"Before measuring, the machine was {preflight.verdict}{because}."), table]
