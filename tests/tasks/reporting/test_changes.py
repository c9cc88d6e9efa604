"""Equal sessions on a machine that drifts are rarely called different, and a slower cell is."""

import functools
import math

import numpy as np
import pytest

from tasks.records.estimate import Estimate
from tasks.reporting.history import HistoryRecord, make_history
from tests.tasks.reporting.comparison import BY_HAND

NUM_SESSIONS = 200
STEP_SECONDS = {"1gpu": 0.136, "2gpu": 0.08}
SPREAD = 0.005
"""Of a session's own figures."""
ENDS = ("", "_low", "_high")


def record(cell, step, speedup=None, *, session=0, **changes):
    """Return one cell of one session."""
    figures = {"step_seconds": step} | ({} if speedup is None else {"speedup": speedup})
    content = BY_HAND["history_record"] | {
        "finished_at": f"2026-01-01T{session // 60:02}:{session % 60:02}:00+00:00",
        "measurement_digest": str(session), "cell": cell, "world_size": int(cell[0]),
        **{f"{name}{end}": getattr(one, end[1:] or "value") for name, one in figures.items() for end in ENDS},
    }  # fmt: skip
    return HistoryRecord.model_validate(content | changes)


@functools.cache
def session(seed, mood, slower=()):
    """Return both cells on a machine that strays by as much within a session as between two; some slower."""
    draw = np.random.default_rng(seed)
    spread = math.exp(draw.normal(0, mood))
    one, two = (
        seconds * dict(slower).get(cell, 1.0) * spread * math.exp(draw.normal(0, SPREAD))
        for cell, seconds in STEP_SECONDS.items()
    )
    width, of_ratio = 1.96 * math.hypot(mood, SPREAD), 1.96 * math.sqrt(2) * SPREAD
    return [
        record("1gpu", tight(one, width), session=seed),
        record("2gpu", tight(two, width), tight(one / two, of_ratio), session=seed),
    ]


@pytest.mark.parametrize("mood", [0.03, 0.005], ids=["drifting", "calm"])
@pytest.mark.parametrize(("slower", "least", "most"), [((), 0.0, 0.05), ((("2gpu", 1.1),), 0.95, 1.0)])
def test_equal_sessions_are_rarely_called_regressions_and_10_percent_slower_ones_are(mood, slower, least, most):
    called = 0
    for seed in range(1, NUM_SESSIONS):
        earlier = [one for before in range(max(0, seed - 11), seed) for one in session(before, mood)]
        now = session(seed, mood, slower)
        called += make_history([*earlier, *now], now).regression is not None
    print(f"called regressions: {called} of {NUM_SESSIONS - 1}")
    assert least <= called / (NUM_SESSIONS - 1) <= most


@pytest.mark.parametrize(
    ("milliseconds", "width", "regressions"),
    [
        # Each within the interval of two sessions, then each below 3 %, then one that is seen at once.
        ((100, 107, 114, 122, 131, 140), 0.06, {3: 0}),
        ((100, 102.5, 105, 107.5, 110), 0.001, {2: 0, 4: 2}),
        ((100, 100, 130, 130), 0.01, {2: 1}),
        ((100, 107, 100, 107, 100, 107), 0.06, {}),
    ],
)
def test_small_steps_that_add_up_are_reported_once_since_the_first(milliseconds, width, regressions):
    sessions = [record("2gpu", tight(took / 1000, width), session=number) for number, took in enumerate(milliseconds)]
    reported = {}
    for number in range(1, len(sessions)):
        history = make_history(sessions[: number + 1], [sessions[number]])
        slower = [change for change in history.changes if change.is_regression]
        reported.update((number, change.since) for change in slower)
        assert (history.regression is None) == (not slower)
        assert ("in small steps" in str(history.regression)) == any(change.is_gradual for change in slower)
    assert reported == {number: sessions[since].finished_at for number, since in regressions.items()}


@pytest.mark.parametrize(
    ("speedup", "verdict", "is_regression"),
    [(1.90, "slower", True), (1.95, "slower", False), (2.0, "no difference", False), (2.1, "faster", False)],
)
def test_a_regression_is_slower_by_interval_and_by_more_than_3_percent(speedup, verdict, is_regression):
    before, now = pair(2.0, speedup, width=0.01)
    change = make_history([before, now], [now]).changes[-1]
    assert (change.quantity, change.verdict, change.is_regression) == ("speedup", verdict, is_regression)


def test_what_scattered_before_widens_the_interval():
    speedups = [2.0, 2.2, 2.0, 2.2, 2.0, 2.2]
    earlier = [record("2gpu", tight(0.1), tight(value), session=number) for number, value in enumerate(speedups)]
    now = record("2gpu", tight(0.1), tight(1.95), session=9)
    assert make_history([earlier[-1], now], [now]).regression is not None
    assert make_history([*earlier, now], [now]).regression is None


def test_a_baseline_that_became_faster_is_no_regression_of_the_others():
    before = [record("1gpu", tight(0.2), session=1), record("2gpu", tight(0.1), tight(2.0), session=1)]
    now = [record("1gpu", tight(0.16), session=2), record("2gpu", tight(0.1), tight(1.6), session=2)]
    history = make_history([*before, *now], now)
    assert [change.verdict for change in history.changes] == ["faster", "no difference", "slower"]
    assert history.regression is None
    slower = [now[0], record("2gpu", tight(0.12), tight(1.33), session=2)]
    assert make_history([*before, *slower], slower).regression is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"params_digest": "another"},
        {"cpu": "Another CPU"},
        {"cell": "2other"},
        {"gates_passed": False},
        {"gates_passed": "not borne out"},
        {"measurement_digest": "2"},
        {"step_seconds": None},
    ],
)
def test_only_the_same_work_on_the_same_models_that_passed_is_comparable(changes):
    before, now = pair(2.0, 1.5, width=0.01)
    assert make_history([before, now], [now]).regression is not None
    other = before.model_copy(update=changes)
    history = make_history([other, now], [now])
    assert history.changes == []
    assert history.summary.startswith("No earlier record is comparable")
    # The one before it counts then.
    assert make_history([before, other, now], [now]).regression is not None


@pytest.mark.parametrize(
    ("changes", "suspect"),
    [
        ({"driver": "555.2", "machine_digest": "x"}, "driver 550.1 -> 555.2"),
        ({"code_digest": "x"}, "the code of training/"),
        ({"machine_digest": "x"}, "another fact of the machine (data/fingerprint/machine.json)"),
    ],
)
def test_what_else_changed_is_named_as_suspect(changes, suspect):
    before, now = pair(2.0, 1.5, width=0.01)
    now = now.model_copy(update=changes)
    assert make_history([before, now], [now]).regression.endswith(f"; changed since 2026-01-01 00:01 UTC: {suspect}")


def test_each_cell_is_compared_with_its_own_last_record():
    records = [record(f"{size}gpu", tight(0.1), session=size) for size in (1, 2)]
    now = [record(f"{size}gpu", tight(0.1), session=9) for size in (1, 2)]
    changes = make_history([*records, *now], now).changes
    assert [(change.cell, change.since[11:16]) for change in changes] == [("1gpu", "00:01"), ("2gpu", "00:02")]


def tight(value, width=0.01):
    return Estimate(value=value, low=value * math.exp(-width), high=value * math.exp(width))


def pair(before, now, *, width):
    """Return two sessions with these speedups and equal step times."""
    first, second = (
        record("2gpu", tight(0.1), tight(speedup, width), session=number)
        for number, speedup in enumerate((before, now), start=1)
    )
    return first, second
