"""What a gate finds in the comparison written by hand, which stands in tmp_path."""

import pytest


def require(found, /, code, *, outcome="failed", within=1e-6, **numbers):
    """Fail unless it is a finding of this code and these numbers, with this outcome unless it passed; None: of none."""
    if code is None:
        assert found is None
        return None
    assert (found.outcome, found.code) == ("passed" if code == "passed" else outcome, code), found.compared
    for name, number in numbers.items():
        assert found.numbers[name] == (pytest.approx(number, rel=within) if isinstance(number, int | float) else number)
    return found


@pytest.fixture
def expect(read):
    """Return `expect(check, code, cell="2proc", ...)`, which judges the cell and returns the finding it requires."""
    return lambda check, code, cell="2proc", **known: require(check(read(), cell), code, **known)
