"""Did the script train as many epochs as it was asked for?"""

import re

from ddp_audit.evidence import list_passes, make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain

NAME = "As many epochs as asked for"
QUESTION = "Does the script go through its data as often as its arguments or constants say?"
CLASS = "wrong training"
SAYS = {
    "too_few_passes": "It trains less than it was asked to: {name}={asked}, and {passes:plural pass} over the data",
}
REMEDY = "let the loop over epochs run to the number that was asked for, or refuse the argument"

_EPOCHS = re.compile(r"^(num_|n_|max_|total_)?(train_)?epochs?$", re.IGNORECASE)
_ENDS_EARLIER = re.compile(
    r"max_?(steps|iter)|num_?(steps|iter)|patience|early|resume|restore|init_from|load_from", re.IGNORECASE
)


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the passes over the training data with the number that the script was given."""
    rank, launched = audit.ranks(cell)[0], audit.first(cell)
    # A global `epoch` is what a loop counts, and no number that was asked for.
    asked = {
        name: value
        for line in rank.lines.get("asked", [])
        for name, value in line["names"].items()
        if line["where"] != "globals" or name != "epoch"
    }
    # transformers' is one with a fraction.
    numbers = {
        name: value
        for name, value in asked.items()
        if _EPOCHS.fullmatch(name)
        and (isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 and value == int(value))
    }
    if not numbers:
        return make_unobservable(
            cell, "nothing_asked_for", "no argument or global name of the script says how many epochs are wanted"
        )
    name, wanted = next((name, int(value)) for name, value in numbers.items())
    asked_for = {"name": name, "asked": wanted}
    ends = [end for _, end in list_passes(rank)]
    passes = len(ends) if ends and None not in ends else None
    if passes is None or launched.was_ended or launched.is_failed:
        return make_unobservable(
            cell,
            "no_whole_pass",
            "{name}={asked}, but no pass over the data of a loader was seen to its end",
            **asked_for,
        )
    if passes < wanted and (
        passes > 1
        or any(_ENDS_EARLIER.search(name) and value not in (None, "", 0, -1, False) for name, value in asked.items())
    ):
        return make_unobservable(
            cell,
            "may_stop_early",
            "{passes} passes of {asked} were made, and the script may have reasons to stop",
            passes=passes,
            **asked_for,
        )
    told = explain(
        "too_few_passes" if passes < wanted else "passed",
        "{cell}: {name}={asked}, and "
        + (
            "the script went through its data {passes:plural time} ({steps:plural step}), then ended by itself"
            if passes < wanted
            else "as many passes over the data"
        ),
        cell=cell, passes=passes, steps=len(rank.steps), **asked_for,
    )  # fmt: skip
    return make_finding([told] * (passes < wanted), told)
