"""What a trial of a search has of its own in params.yaml, and the best one's parameters as a patch."""

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from tasks.params import Params
from tasks.params.search import Configuration
from tasks.params.train import AUTO

_VALUE = re.compile(r"[^\s#,}]+")


def make_train_changes(params: Params, drawn: Configuration) -> dict[str, Any]:
    """Return what a trial's section `train` has of its own.

    The schedule runs once over the epochs of the last rung, whichever rung the trial gets to. Micro-batches are such
    that all cells can split them that can split the batch.
    """
    shares = {params.count_shares(cell) for cell in params.cells}
    per_rank = [drawn.batch_size // number for number in shares if drawn.batch_size % number == 0]
    size = params.train.micro_batch_size
    return {
        "epochs": params.search.rungs[-1],
        "schedule_span": "run",
        "learning_rate": drawn.learning_rate,
        "global_batch_size": drawn.batch_size,
        "micro_batch_size": "auto" if size == AUTO else math.gcd(size, *per_rank),
        "weight_decay": drawn.weight_decay,
        "warmup_steps": drawn.warmup_steps,
    }


def make_patch(text: str, changes: Mapping[str, Any]) -> str:
    """Return a unified diff of params.yaml, whose text is given, that puts the changes into its section `train`.

    Every other line, and what stands behind a value, stays as it is.
    """
    section = YAML(typ="rt", pure=True).load(text)["train"]
    lines = text.splitlines(keepends=True)
    first = section.lc.key(next(iter(section)))
    # From the end to the beginning, so that no change moves the place of another.
    places = {key: section.lc.value(key) if key in section else first for key in changes}
    for key, (line, column) in sorted(places.items(), key=lambda item: item[1], reverse=True):
        if key in section:
            lines[line] = lines[line][:column] + _VALUE.sub(str(changes[key]), lines[line][column:], count=1)
        else:
            before, after = lines[line][:column], lines[line][column:]
            is_block = not before.strip()
            lines[line] = f"{before}{key}: {changes[key]}{chr(10) + before if is_block else ', '}{after}"
    new = "".join(lines).splitlines(keepends=True)
    diff = difflib.unified_diff(text.splitlines(keepends=True), new, "a/params.yaml", "b/params.yaml")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff)
