"""Where the figures come from: what to type to have them again, how long each stage took, how to cite them."""

from tasks.process import wording
from tasks.reporting.blocks import Block, Code, Facts, Fold, Table, Text
from tasks.reporting.provenance import cite
from tasks.reporting.results import Results

TITLE = "Where it comes from"


def make_blocks(results: Results) -> list[Block]:
    """Return commit and command, seconds of each stage, a line to cite, a badge and the params."""
    found = results.provenance
    if found is None:
        return [Text("These results were made by an earlier version, which did not keep it.")]
    facts = [("Made again by", found.command), *([("Commit", found.commit)] if found.commit else [])]
    rows = [[stage, wording.format_seconds(seconds)] for stage, seconds in found.stage_seconds.items()]
    badge = f"[![speedup](badge.svg)](index.html) {results.name}"
    return [
        Facts(facts),
        *[Table("How long each stage took when it last ran here", ["Stage", "Seconds"], rows)] * bool(rows),
        Code(cite(results.name, results.verdict, results.created_at, found.commit), "text", "To cite it"),
        Code(badge, "markdown", "A badge, drawn in badge.svg beside this page"),
        Fold("params.yaml, with the defaults filled in", [Code(found.params, "yaml", "params.yaml")]),
    ]
