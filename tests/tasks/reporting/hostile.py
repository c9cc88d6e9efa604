"""Results whose every name is an attack on the format that it is written into."""

import json

from tasks.reporting.results import Results

NAMES = {"1proc": "<script>alert(1)</script>", "2proc": "=cmd|'/C calc'!A0"}
CODES = "\x1b[2J\x9b1m\x07"
"""What a terminal would obey."""
TEXT = "</pre><script>alert(2)</script> `` ` | [x](http://evil.example) @someone ``` *b*"


def hostile(results):
    """Return the results with hostile names of cells, description, label, samples and params."""
    text = json.dumps(results.model_dump(mode="json"))
    for name, attack in NAMES.items():
        text = text.replace(name, json.dumps(attack)[1:-1])
    content = json.loads(text)
    content |= {"description": TEXT, "label": TEXT + CODES}
    content["comparison"]["dataset"]["label"] = TEXT + CODES
    content["provenance"] = {"commit": CODES, "command": TEXT, "params": CODES, "stage_seconds": {CODES: 1.0}}
    content["quality"]["samples"][0] |= {"prompt": TEXT, "reference": TEXT}
    return Results.model_validate(content)
