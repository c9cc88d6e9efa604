"""The changes that were tried, what each gained, and what to write into params.yaml."""

from tasks.process import wording
from tasks.records.arm_figures import explain_omission
from tasks.records.measurement import Advice, Advised, Measurement
from tasks.reporting.blocks import Block, Code, Fold, Heading, Text, tabulate
from tasks.reporting.results import Results

TITLE = "What to change"


def make_blocks(results: Results) -> list[Block]:
    """Return what was tried and what is recommended, or why nothing is."""
    measurement = results.measurement
    if measurement is None:
        return [Text(wording.UNMEASURED)]
    advice = measurement.advice
    if advice is None:
        off = "No change was tried: none can be here, or measure.advice in params.yaml is off."
        return [Text(explain_omission(measurement, "advice") or off)]
    if not advice.tried:
        none = "No change was tried: none of those that are known can matter here."
        return [Text(_describe_failed(advice) or explain_omission(measurement, "advice on options: not") or none)]
    combined = [] if advice.combined is None else [advice.combined]
    tried = [(one.change, one) for one in advice.tried]
    table = tabulate(
        "Changes that were tried, the best first",
        [
            ("Change", lambda row: row[0]),
            ("Cell", lambda row: row[1].cell),
            ("Gain", lambda row: wording.format_ratio_with_interval(row[1].gain)),
            ("Advice", lambda row: row[1].verdict),
            ("Note", lambda row: row[1].note or ""),
        ],
        [*tried, *((f"all together: {one.change}", one) for one in combined)],
        num_prose=2,
    )
    patches = [*(("All together", one) for one in combined), *tried]
    folded = [block for one in patches[1:] for block in _show_patch(*one)]
    return [
        Text(_advise(measurement, advice)),
        table,
        *_show_patch(*patches[0]),
        *[Fold("The other changes, for params.yaml", folded)] * bool(folded),
    ]


def _advise(measurement: Measurement, advice: Advice) -> str:
    """Return how many changes are recommended, and which could not be run."""
    recommended = sum(one.verdict == "recommended" for one in advice.tried)
    found = (
        f"{recommended} of {wording.format_plural(len(advice.tried), 'change')} made the cell faster beyond doubt: the "
        "whole interval of the gain is above 1."
        if recommended
        else "None of these changes is recommended: for none is the whole interval above 1."
    )
    more = [explain_omission(measurement, f"advice {words}") for words in ("on options: not available", "is withheld")]
    return " ".join([found, *filter(None, [_describe_failed(advice), _describe_not_tried(advice), *more])])


def _describe_not_tried(advice: Advice) -> str | None:
    left = "; ".join(advice.not_tried)
    return f"Not tried, for want of time (measure.advice_seconds): {left}." if left else None


def _describe_failed(advice: Advice) -> str | None:
    return f"Could not be run: {'; '.join(advice.failed)}." if advice.failed else None


def _show_patch(title: str, one: Advised) -> list[Block]:
    """Return what to write into params.yaml, if the change is recommended."""
    if one.verdict != "recommended" or not one.patch.strip():
        return []
    return [
        Heading(f"{title}: {wording.format_ratio_with_interval(one.gain)} on {one.cell}"),
        Code(one.patch.strip("\n"), "yaml", "What to write into params.yaml"),
    ]
