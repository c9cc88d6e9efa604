import pytest

from tasks.process import wording
from tasks.records.estimate import Estimate


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.003814, "0.00381"),
        (1.5, "1.50"),
        (10.0, "10.0"),
        (53.96, "54.0"),
        (123.4, "123"),
        (12345.6, "12,300"),
    ],
)
def test_numbers_have_three_digits(value: float, words: str) -> None:
    assert wording.format_three_digits(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0001234, "$0.000123"), (0.0142, "$0.0142"), (1.0, "$1.00"), (12.3, "$12.30"), (1234.0, "$1,230")],
)
def test_dollars_have_cents_where_those_matter(value: float, words: str) -> None:
    assert wording.format_usd(value) == words


def test_what_is_withheld_says_so() -> None:
    assert wording.format_ratio(None) == wording.format_percent(None) == "withheld"
    assert (wording.format_ratio(1.5625), wording.format_percent(0.78125)) == ("1.56x", "78 %")


def test_readable_text_has_no_lone_surrogate_and_no_control_character() -> None:
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
def test_the_ends_of_an_interval_are_told_apart_and_from_one(low: float, value: float, high: float, words: str) -> None:
    assert wording.format_interval(Estimate(value=value, low=low, high=high)) == words


def test_a_figure_and_its_interval_have_one_unit() -> None:
    assert (
        wording.format_duration_with_interval(Estimate(value=0.042, low=0.0416, high=0.0424))
        == "42.0 ms (41.6 to 42.4)"
    )
    assert wording.format_duration_with_interval(Estimate(value=1.2, low=0.9, high=1.5)) == "1.20 s (0.900 to 1.50)"
    assert (wording.format_duration(0.9994), wording.format_duration(1.0), wording.format_duration(-0.0005)) == (
        "999 ms",
        "1.00 s",
        "-0.500 ms",
    )
    assert wording.format_percent_with_interval(Estimate(value=0.81, low=0.79, high=0.83)) == "81 % (79 to 83)"
    assert wording.format_ratio_with_interval(None) == "withheld"
