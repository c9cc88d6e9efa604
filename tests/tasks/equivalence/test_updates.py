"""What an update is held against beside its gradient."""

from types import SimpleNamespace

import pytest

from tasks.equivalence.updates import State, _Check


@pytest.mark.parametrize(
    ("scaler", "is_wrong"), [({}, True), ({"_growth_tracker": 2}, True), ({"_growth_tracker": 0}, False)]
)
def test_momentum_is_missed_where_an_update_was_made_before(scaler, is_wrong):
    check = _Check.__new__(_Check)
    check._config, check._number, check.problems = SimpleNamespace(optimizer="sgd", momentum=0.9), 3, []
    check._before = check._after = State({}, {}, {}, {}, scaler)
    check._check_counts()
    assert bool(check.problems) is is_wrong
