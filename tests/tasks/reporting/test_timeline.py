import gzip
import json

from tasks.records.measurement import RankTimeline
from tasks.reporting.timeline import collect_hardware, collect_timelines, write_timelines
from tests.tasks.reporting.blocks import arm_blocks
from tests.tasks.reporting.comparison import BY_HAND
from tests.tasks.reporting.measured import measurement

STEP = {cell: [RankTimeline.model_validate(one) for one in ranks] for cell, ranks in BY_HAND["timeline"].items()}
"""A forward with a product in it, backward, exchange and update of rank 0; the clock of rank 1 began 100 us later."""


def test_the_page_has_each_rank_on_one_clock_and_nothing_twice():
    (found,) = collect_timelines(STEP)
    spans = [(one.rank, one.kind, round(1e6 * one.start_seconds), round(1e6 * one.end_seconds)) for one in found.spans]
    assert spans == [
        (0, "forward and else", 0, 400), (0, "backward", 490, 990), (0, "exchange", 790, 1390),
        (0, "update", 1490, 1590),
        (1, "exchange", 800, 1400),
    ]  # fmt: skip


def test_a_trace_has_a_process_per_rank_and_the_same_bytes_each_time(tmp_path):
    write_timelines(tmp_path / "timelines", {**STEP, "../1proc": []})
    (file,) = (tmp_path / "timelines").glob("*.gz")
    before = file.read_bytes()
    events = json.loads(gzip.decompress(before))["traceEvents"]
    timed = [(one["pid"], one["name"], one["ts"], one["dur"]) for one in events if one["ph"] == "X"]
    assert {(0, "aten::mm", 10.0, 300.0), (1, "gloo:all_reduce", 800.0, 600.0)} <= set(timed)
    write_timelines(tmp_path / "timelines", STEP)
    assert file.read_bytes() == before
    write_timelines(tmp_path / "timelines", {})
    assert [one.name for one in file.parent.iterdir()] == ["README.txt"]


def test_of_very_many_blocks_some_are_left_out_and_of_an_earlier_version_all():
    old, new = arm_blocks("2proc"), arm_blocks("2proc", turn=None, started_at=1.7e9, cores_used=[1.0, 1.0])
    assert collect_hardware(measurement(blocks=[old])) == []
    many = new.model_copy(update={"blocks": new.blocks * 240})
    (thinned,) = collect_hardware(measurement(blocks=[many]))
    assert 100 < len(thinned.readings) <= 240
