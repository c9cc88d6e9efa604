import pytest

from tasks.reporting import wording


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
    assert wording.three_digits(value) == words


def test_what_is_withheld_says_so() -> None:
    assert wording.ratio(None) == wording.percent(None) == "withheld"
    assert (wording.ratio(1.5625), wording.percent(0.78125)) == ("1.56x", "78 %")


def test_names_are_listed_as_people_do() -> None:
    assert [wording.listed(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]


def test_readable_text_has_no_lone_surrogate_and_no_control_character() -> None:
    assert wording.readable("a\ud800b\x00c\x1b[31m\td\n") == "a?b�c�[31m\td\n"
    wording.readable("\udfff").encode()


def test_sizes_of_models_are_named_as_people_do() -> None:
    assert wording.parameters(494_032_768) == "494.0 million parameters"
    assert wording.parameters(7_000_000_000) == "7.0 billion parameters"
    assert wording.parameters(1000) == "1,000 parameters"
