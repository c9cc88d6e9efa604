"""Results whose every name is an attack on the format that it is written into."""

import json

from tasks.reporting.results import Results

NAMES = {"1proc": "<script>alert(1)</script>", "2proc": "=cmd|'/C calc'!A0"}
TEXT = "</pre><script>alert(2)</script> `` ` | [x](http://evil.example) @someone ``` *b*"


def hostile(results):
    """Return the results with hostile names of cells, description, label and samples."""
    text = json.dumps(results.model_dump(mode="json"))
    for name, attack in NAMES.items():
        text = text.replace(name, json.dumps(attack)[1:-1])
    content = json.loads(text)
    content |= {"description": TEXT, "label": TEXT}
    content["comparison"]["dataset"]["label"] = TEXT
    content["quality"]["samples"][0] |= {"prompt": TEXT, "reference": TEXT}
    return Results.model_validate(content)
