"""The figures of an audit's report, worked out by hand from a record that is made up; and what it shows of names."""

import json
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest

from ddp_audit.__main__ import require_steps
from ddp_audit.asked import ConfigurationError, Request, ScriptError
from ddp_audit.checks import Answers, Result, ask_all, judge_cells
from ddp_audit.findings import list_first_pass
from ddp_audit.findings.cells import global_batch, plausible_speed
from ddp_audit.findings.gradients import loss_weights
from ddp_audit.findings.hygiene import clock
from ddp_audit.findings.parameters import finite
from ddp_audit.findings.rows import rows_of_its_own
from ddp_audit.page import format_verdict, make_document, render_html, render_markdown
from ddp_audit.process.findings import Finding
from ddp_audit.records import Audit, Launched, RankRecord, read_rank
from ddp_audit.running import StepCounter
from ddp_audit.speed import Ratio, compute_speeds, split_steps, sum_other_work

_REQUEST = Request(
    words=("/there/train.py", "--name", "<b>"), folder=Path("/there"), cells={"1proc": 1, "2proc": 2}, python="python",
    num_launches=3, most_steps=None, hang_seconds=600,
)  # fmt: skip


def _make_steps(num_steps, samples, **seconds):
    steps = _feed({"num_samples": samples, "shape": [samples, 5]} for _ in range(num_steps))
    return [step | {"seconds": dict(seconds)} for step in steps]


def _feed(micros):
    """Return steps that learn from one of these micro-batches each."""
    return [
        {"step": step, "micros": [micro], "seconds": {"forward": 0.1}, "lr": [0.1], "num_collectives": 0}
        for step, micro in enumerate(micros, start=1)
    ]


def _make_audit(one, two, *, num_launches=1):
    def launch(cell, of_ranks):
        end = {"end": [{"seconds": {}}]}
        ranks = [RankRecord(rank, steps=steps, lines=end) for rank, steps in enumerate(of_ranks)]
        return Launched(cell, Path(f"launched/{cell}"), ranks, 0)

    both = {"1proc": one, "2proc": two}
    return Audit(_REQUEST, {cell: [launch(cell, steps) for _ in range(num_launches)] for cell, steps in both.items()})


def _make_usual(num_launches=3):
    # The slowest rank of a step counts; a checkpoint and the observer don't.
    fast = _make_steps(20, 4, forward=0.02, backward=0.03, checkpoint=1.0, observer=0.5)
    slow = _make_steps(20, 4, forward=0.02, backward=0.06)
    return _make_audit([_make_steps(20, 8, forward=0.04, backward=0.06)], [fast, slow], num_launches=num_launches)


def test_a_speedup_is_samples_per_second_of_the_slowest_rank_without_other_work():
    audit = _make_usual()
    base, two = compute_speeds(audit)
    assert base.step_seconds == pytest.approx(0.1)
    assert base.samples_per_second == pytest.approx(8 / 0.1)
    assert two.step_seconds == pytest.approx(0.08)
    assert two.num_steps == 3 * 18  # a tenth of 20 is left out
    assert two.speedup.value == pytest.approx(0.1 / 0.08)
    assert two.has_interval
    # The split is the mean over ranks.
    assert split_steps(audit.first("2proc")) == pytest.approx({"forward": 0.02, "backward": 0.045})
    other = {"checkpoint": 20.0, "evaluation": 0, "network": 0, "subprocess": 0, "observer": 10.0}
    assert sum_other_work(audit.first("2proc")) == pytest.approx(other)


def test_two_launches_give_no_interval_and_the_report_says_so():
    audit = _make_usual(2)
    speeds = compute_speeds(audit)
    assert not speeds[1].has_interval
    told = format_verdict(Result(audit, [], speeds, judge_cells([], speeds, list(_REQUEST.cells))))
    assert "1.25x as fast, no interval, unproven" in told


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(1.2, 1.3, "proven"), (0.17, 8.65, "unproven"), (0.97, 1.02, "proven"), (0.5, 0.9, "proven")],
)
def test_a_speedup_that_may_as_well_be_none_is_unproven(low, high, state):
    base, two = compute_speeds(_make_usual())
    speeds = [base, replace(two, speedup=Ratio((low * high) ** 0.5, low, high))]
    standing = judge_cells([], speeds, list(_REQUEST.cells))["2proc"]
    assert (standing.state, "may be slower or faster" in standing.reason) == (state, state == "unproven")


# 0.1 / 0.046 / 2 is 1.087, 0.1 / 0.045 / 2 is 1.111.
@pytest.mark.parametrize(("seconds", "verdict"), [(0.046, "passed"), (0.045, "not checked")])
def test_more_times_as_fast_than_ten_percent_above_the_ranks_is_not_believed(seconds, verdict):
    audit = _make_audit([_make_steps(20, 8, forward=0.1)], [_make_steps(20, 4, forward=seconds)] * 2)
    assert plausible_speed.find(audit, "2proc").outcome == verdict
    assert plausible_speed.find(audit, "1proc") is None


@pytest.mark.parametrize("verdict", ["failed", "not checked", "passed"])
def test_a_failed_finding_withholds_the_speedup_everywhere_on_the_page(verdict):
    audit, numbers = _make_usual(), {"rate": 1, "baseline": "1proc", "baseline_rate": 2}
    finding = Finding(verdict, "other_rate", "2proc: 1 against 2", numbers, true_figure="half of it")
    answers, speeds = [Answers("Same global batch", "Is it?", {"2proc": finding})], compute_speeds(audit)
    document = make_document(Result(audit, answers, speeds, judge_cells(answers, speeds, list(_REQUEST.cells))))
    page, text = render_html(document), render_markdown(document)
    assert ("1.25x" in text) is ("1.25x" in page) is (verdict != "failed")
    assert ("half of it" in text) is (verdict == "failed")
    assert ("– not observable" in text) is (verdict == "not checked")
    assert "<b>" not in page  # of the script's arguments


@pytest.mark.parametrize(
    ("contents", "repeats", "verdict", "code"),
    [
        (["row", "row"], 1, "failed", "same_rows"),
        (["of 0", "of 1"], 1, "not checked", "other_contents"),
        # Each of two workers reads the whole stream.
        (["row", "row"], 2, "failed", "same_rows"),
        (["of 0", "of 1"], 2, "not checked", "rows_repeated"),
    ],
)
def test_same_indices_are_the_same_rows_unless_what_was_looked_at_differs(contents, repeats, verdict, code):
    def read(content):
        rows = [f"{content} {number // repeats}" for number in range(20)]
        if repeats > 1:
            return _feed({"loader": 0, "rows": [f"{row} {at}" for at in range(4)]} for row in rows)
        # Every fourth row was looked at; of a stream all.
        return _feed(
            {"loader": 0, "ids": [*range(4 * at, 4 * at + 4)], "rows": [row, "", "", ""]} for at, row in enumerate(rows)
        )

    audit = _make_audit([read(contents[0])], list(map(read, contents)))
    found = rows_of_its_own.find(audit, "2proc")
    assert (found.outcome, found.code) == (verdict, code)
    assert verdict != "failed" or (found.numbers["share"], found.numbers["rows"]) == (1.0, 160)


_TRIPLED = [row for row in range(60) for _ in range(3)]


@pytest.mark.parametrize(
    ("base", "of_ranks", "num_there", "code"),
    [
        # Repeated augmentation, and on every rank.
        (_TRIPLED, [_TRIPLED[rank::4] for rank in range(4)], 60, "rows_repeated"),
        (_TRIPLED, [_TRIPLED] * 2, 60, "same_rows"),
        # Shards that are resampled, or shuffled by ranks.
        ([*range(20)] * 2, [range(40), range(20, 60)], None, "rows_repeated"),
        (range(60), [range(40), range(20, 60)], None, "same_rows"),
        # A stream on every rank, and an endless one.
        (range(60), [range(40), range(40)], None, "same_rows"),
        ([*range(40), *range(20)], [range(30), range(10, 40)], None, "same_rows"),
    ],
)
def test_rows_that_are_meant_to_come_on_several_ranks_are_no_defect(base, of_ranks, num_there, code):
    def feed(rows):
        size = len(rows) // 10
        batches = [list(rows[at : at + size]) for at in range(0, 10 * size, size)]
        return _feed(
            {"loader": 0, **({"ids": batch} if num_there else {"rows": [*map(str, batch)]})} for batch in batches
        )

    audit = _make_audit([feed(base)], list(map(feed, of_ranks)))
    for rank in audit.ranks("2proc"):
        rank.lines["loader"] = [{"loader": 0, "num_rows": num_there, "num_workers": 1}]
    assert rows_of_its_own.find(audit, "2proc").code == code


@pytest.mark.parametrize(
    ("tokens", "is_weak", "code"), [(120, False, "passed"), (240, False, "other_batch"), (240, True, "passed")]
)
def test_batches_that_are_sized_by_tokens_are_compared_by_them(tokens, is_weak, code):
    def feed(most, shift):
        widths = [(4, 5, 40, 60, 24)[(number + shift) % 5] for number in range(1, 21)]
        return _feed({"num_samples": most // width, "shape": [most // width, width]} for width in widths)

    audit = _make_audit([feed(240, 0)], [feed(tokens, 0), feed(tokens, 1)])
    audit.request = replace(_REQUEST, is_weak=is_weak)
    assert global_batch.find(audit, "2proc").code == code


def test_what_is_a_part_of_steps_in_one_cell_is_one_in_all():
    """As an evaluation after each epoch, which with more ranks has half as many steps."""
    steps = [_make_steps(40, 8, forward=0.1), _make_steps(40, 8, forward=0.1)]
    for every, those in zip((2, 1), steps, strict=True):
        for step in those[::every]:
            step["seconds"] = {**step["seconds"], "evaluation": 0.3}
    audit = _make_audit(steps[:1], steps[1:] * 2)
    one = audit.first("1proc")
    assert "evaluation" not in split_steps(replace(one, beside=[])), "by itself it is no part of most steps"
    # What is asked turn by turn changes nothing of it.
    Audit(_REQUEST, {"1proc": [one]})
    assert split_steps(one)["evaluation"] == pytest.approx(0.15, rel=0.05)
    assert [speed.step_seconds for speed in compute_speeds(audit)] == pytest.approx([0.25, 0.4], rel=0.05)


@pytest.mark.parametrize(
    ("begun", "left", "verdict"), [(1.0, 1.0, "passed"), (1.0, nan, "failed"), (nan, nan, "passed")]
)
def test_parameters_that_become_no_numbers_fail_though_every_loss_is_one(begun, left, verdict):
    step = {"step": 1, "micros": [{"loss": 2.0}], "start": {"l2": begun}, "weights": {"l2": left}}
    assert finite.find(_make_audit([[step]], [[step]] * 2), "1proc").outcome == verdict


def _make_pass(num_steps, *ends, last=4):
    """Return a rank with passes over its rows; the last micro-batch of each has `last` targets, the others 4."""
    lines = [{"loader": 0, "is_over": False, "step": 0}]
    for end in ends:
        lines += [{"loader": 0, "is_over": is_over, "step": end} for is_over in (True, False)]
    loss = {"loss": 1.0, "num_losses": 1, "reduction": "mean"}
    weights = {step: [[last if step in ends else 4, 1.0, 1.0]] for step in range(1, num_steps + 1)}
    steps = [
        {"step": step, "micros": [{"loader": 0, "ids": [step], "weights": weights[step], **loss}]} for step in weights
    ]
    return RankRecord(0, steps=steps, lines={"pass": lines, "torch": []})


def test_a_pass_whose_last_steps_were_never_written_is_not_whole():
    assert [list_first_pass(_make_pass(number, 6))[1] for number in (6, 5)] == [True, False]


def test_passes_of_other_lengths_are_wrong_unless_who_is_through_waits_and_are_named_in_a_failure():
    # One step more or less is how streams are that a loop over steps goes round.
    for second, end, is_wrong in ((9, 4, True), (5, 4, False), (9, 5, False)):
        two = Launched("2proc", Path(), [_make_pass(9, 6), _make_pass(second, end)], 0)
        audit = _make_audit([[]], [])
        found = rows_of_its_own.find(Audit(_REQUEST, {**audit.launches, "2proc": [two]}), "2proc")
        assert (found.code == "uneven_passes") is is_wrong
    failed = Launched("2proc", Path(), [_make_pass(5), _make_pass(4, 4)], 1, "it failed")
    says = r"it failed; a pass over the data ended on rank 1 after step 4 and not on all"
    with pytest.raises(ScriptError, match=says):
        require_steps(failed, started_in=Path())


def test_a_script_that_never_imported_torch_is_told_so():
    with pytest.raises(ConfigurationError, match=r"never imported torch: nothing to observe; .* in logs$"):
        require_steps(Launched("1proc", Path(), [RankRecord(0, {})], 0), started_in=Path())


def test_a_smaller_batch_at_the_end_of_a_pass_is_no_mean_of_means():
    ranks = [_make_pass(6, 2, 4, 6), _make_pass(6, 2, 4, 6, last=1)]
    endless = [replace(rank, lines={}) for rank in ranks]
    for two, code in ((ranks, "means_of_means_at_times"), (endless, "means_of_means")):
        assert loss_weights.find(Audit(_REQUEST, {"2proc": [Launched("2proc", Path(), two, 0)]}), "2proc").code == code


def test_the_clock_of_a_run_of_two_epochs_is_not_the_span_from_one_start_to_the_next():
    audit = _make_audit([_make_steps(8, 4, forward=0.1)], [_make_steps(8, 4, forward=0.1)])
    (rank,) = audit.ranks("2proc")
    spans = {"train.py:9": (8, {"training": 1.6}), "train.py:1": (4, {"training": 0.6, "evaluation": 0.1})}
    rank.windows = [
        {"begin": ["train.py", 1], "end": [*end.split(":")], "num_steps": num_steps, "seconds": seconds}
        for end, (num_steps, seconds) in spans.items()
    ]
    assert clock.find(audit, "2proc").outcome == "passed"


_MARKUP = "<img src=x onerror=alert(1)>"


def test_markup_in_names_stays_text_in_page_and_terminal_report():
    micro = {"model": _MARKUP, "wrapper": _MARKUP, "num_samples": 4, "shape": [4, 2], "line": [_MARKUP, 3]}
    steps = [step | {"optimizer": _MARKUP, "backend": _MARKUP} for step in _feed(dict(micro) for _ in range(29))]
    lines = {
        "asked": [{"where": "arguments", "names": {"epochs": 3, "resume": _MARKUP}, "are_there": {}}],
        "open": [{"path": f"/{_MARKUP}.csv", "mode": "a"}],
    }
    request = replace(_REQUEST, words=(f"/there/{_MARKUP}.py", _MARKUP), cells={"1proc": 1})
    rank = RankRecord(0, {"pid": 1, "python": _MARKUP}, steps, lines=lines)
    audit = Audit(request, {"1proc": [Launched("1proc", Path(), [rank], 0)]})
    answers = ask_all(audit)
    document = make_document(Result(audit, answers, compute_speeds(audit), judge_cells(answers, [], ["1proc"])))
    page = render_html(document)
    assert "<img" not in page + render_markdown(document)
    assert page.count("&lt;img src=x") > 3


def test_what_a_script_itself_writes_into_its_record_is_no_step(tmp_path):
    def encode(step):
        line = {"mark": "1", "kind": "step", "step": step, "micros": [{}], "seconds": {}}
        return json.dumps(line, separators=(",", ":")).encode()

    forged = [b"[" * 100_000, b"7", b'{"kind": ["step"]}', b'{"kind": "step", "step": 3, "micros": [7], "seconds": {}}']
    forged.append(b'{"kind": "step", "step": 4, "micros": [{}], "seconds": {"forward": "long"}}')
    file = tmp_path / "rank-0.jsonl"
    file.write_bytes(b"\n".join([encode(1), encode(2), *forged, b""]))
    counter = StepCounter(file)
    assert counter.count() == 2
    with file.open("ab") as more:
        more.write(encode(5) + b"\n")
    assert counter.count() == 3
    assert [step["step"] for step in read_rank(file, 0).steps] == [1, 2, 5]
