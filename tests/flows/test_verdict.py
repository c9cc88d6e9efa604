"""The verdict on the terminal holds what results.json says of each cell, withheld ones without a figure."""

import json

import pytest

from flows.__main__ import print_verdict

RESULTS = json.loads("""{
  "verdict": "2proc trains 1.58x as fast as 1proc.",
  "cells": [
    {"cell": "1proc", "seconds_per_epoch": 20.0, "speed": null, "speedup": null, "is_baseline": true,
     "standing": {"state": "proven"}},
    {"cell": "2proc", "seconds_per_epoch": 20.0, "speed": null, "is_baseline": false, "standing": {"state": "proven"},
     "speedup": {"value": 1.58, "low": 1.0002, "high": 1.8, "parallel_efficiency": {"value": 0.79}}},
    {"cell": "3proc", "seconds_per_epoch": 20.0, "speed": null, "speedup": null, "is_baseline": false,
     "standing": {"state": "not measured"}},
    {"cell": "4proc", "seconds_per_epoch": 20.0, "speed": null, "speedup": null, "is_baseline": false,
     "standing": {"state": "withheld"}}
  ]
}""")


@pytest.mark.parametrize("width", [60, 100])
def test_each_cell_has_its_line(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    print_verdict(RESULTS)
    *lines, nothing, sentence = capsys.readouterr().out.splitlines()
    assert not nothing
    assert sentence == RESULTS["verdict"]
    assert max(map(len, lines)) <= width
    if width == 100:
        rows = [" ".join(line.split()) for line in lines]
        assert rows[1:] == [
            "1proc 20.0 s baseline – – proven",
            "2proc 20.0 s 1.58x 1.0002x to 1.8000x 79 % proven",
            "3proc 20.0 s not measured – – not measured",
            "4proc 20.0 s withheld – – withheld",
        ]
