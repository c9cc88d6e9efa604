"""The verdict on the terminal holds what results.json says of each cell, withheld ones without a figure."""

import pytest

from flows.__main__ import print_verdict


def _cell(name, state, **others):
    found = {"speed": None, "speedup": None, "is_baseline": False, **others}
    return {"cell": name, "seconds_per_epoch": 20.0, "standing": {"state": state}, **found}


RESULTS = {
    "verdict": "2proc trains 1.58x as fast as 1proc.",
    "cells": [
        _cell("1proc", "proven", is_baseline=True),
        _cell(
            "2proc", "proven",
            speedup={"value": 1.58, "low": 1.0002, "high": 1.8, "parallel_efficiency": {"value": 0.79}},
        ),
        _cell("3proc", "not measured"),
        _cell("4proc", "withheld"),
    ],
}  # fmt: skip


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
