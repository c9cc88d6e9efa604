import pytest

from tasks.process import wording
from tasks.records.estimate import Estimate


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.003814, "0.00381"),
        (53.96, "54.0"),
        (12345.6, "12,300"),
    ],
)
def test_numbers_have_three_digits(value, words):
    assert wording.format_three_digits(value) == words


def test_readable_text_has_no_lone_surrogate_and_no_control_character():
    assert wording.replace_unprintable("a\ud800b\x00c\x1b[31m\td\n") == "a?b�c�[31m\td\n"
    wording.replace_unprintable("\udfff").encode()


@pytest.mark.parametrize(
    ("low", "value", "high", "words"),
    [
        (1.578, 1.619, 1.66, "1.58x to 1.66x"),
        (0.9981, 1.0, 1.0022, "0.998x to 1.002x"),
        # Above 1, however little, is not shown as if 1 were inside.
        (1.0012, 1.01, 1.02, "1.001x to 1.020x"),
        (0.99, 1.0, 1.01, "0.99x to 1.01x"),
    ],
)
def test_the_ends_of_an_interval_are_told_apart_and_from_one(low, value, high, words):
    assert wording.format_interval(Estimate(value=value, low=low, high=high)) == words
