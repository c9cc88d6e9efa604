"""The report of an audit shows what a script calls its things, and none of it becomes markup or breaks the page."""

import json

from ddp_audit.asked import parse_request
from ddp_audit.checks import Result, ask_all, judge_cells
from ddp_audit.page import make_document, render_html, render_markdown
from ddp_audit.records import Audit, Launched, read_rank
from ddp_audit.running import StepCounter
from ddp_audit.speed import compute_speeds

_MARKUP = "<img src=x onerror=alert(1)>"


def _make_step(number, **more):
    micro = {
        "model": _MARKUP,
        "wrapper": _MARKUP,
        "num_samples": 4,
        "shape": [4, 2],
        "line": [_MARKUP, 3],
        "loader": "x-4-0",
    }
    return {"kind": "step", "step": number, "lr": [0.1], "micros": [micro], "seconds": {"forward": 0.1}, **more}


def _encode(line):
    return json.dumps({"mark": "1", **line}, separators=(",", ":")).encode() + b"\n"


def test_markup_in_names_stays_text_in_page_and_terminal_report(tmp_path):
    (tmp_path / f"{_MARKUP}.py").touch()
    request = parse_request({"SCRIPT": f"'{_MARKUP}.py' {_MARKUP!r}", "CELLS": "1", "FOLDER": str(tmp_path)})
    assert request.command_line.startswith(f"'{_MARKUP}.py'")
    lines = [
        {"kind": "start", "pid": 1, "python": _MARKUP},
        {"kind": "asked", "where": "arguments", "names": {"epochs": 3, "resume": _MARKUP}, "are_there": {}},
        {"kind": "open", "path": f"/{_MARKUP}.csv", "mode": "a"},
        *(_make_step(number, optimizer=_MARKUP, backend=_MARKUP) for number in range(1, 30)),
    ]
    (tmp_path / "rank-0.jsonl").write_bytes(b"".join(map(_encode, lines)))
    rank = read_rank(tmp_path / "rank-0.jsonl", 0)
    audit = Audit(request, {"1proc": [Launched("1proc", tmp_path, [rank], 0)]})
    gates = ask_all(audit)
    document = make_document(Result(audit, gates, compute_speeds(audit), judge_cells(gates, [], ["1proc"])))
    page = render_html(document)
    assert "<img" not in page
    assert page.count("&lt;img src=x") > 3
    assert "<img" not in render_markdown(document)


def test_what_a_script_itself_writes_into_its_record_is_no_step(tmp_path):
    file = tmp_path / "rank-0.jsonl"
    forged = [b"[" * 100_000, b"7", b'{"kind": ["step"]}', b'{"kind": "step", "step": 3, "micros": [7], "seconds": {}}']
    forged.append(b'{"kind": "step", "step": 4, "micros": [{}], "seconds": {"forward": "long"}}')
    file.write_bytes(b"".join(map(_encode, [_make_step(1), _make_step(2)])) + b"\n".join([*forged, b""]))
    counter = StepCounter(file)
    assert counter.count() == 2
    with file.open("ab") as more:
        more.write(_encode(_make_step(5)))
    assert counter.count() == 3
    assert [step["step"] for step in read_rank(file, 0).steps] == [1, 2, 5]
