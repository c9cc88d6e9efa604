import pytest

from tasks.data.builtin.prose import extract_paragraphs, is_prose

NUMPYDOC = """
    Return the running mean of a series of numbers, one value for each of them.

    The mean of the first elements is taken over what is there, and `window` limits
    how far back the function looks. See :func:`~statistics.fmean` for how it is done [1]_.

    Parameters
    ----------
    values : array_like
        The numbers that the mean is taken of, in the order in which they were seen.
    window : int, optional
        How many of the numbers count.

    Returns
    -------
    ndarray
        The means of the numbers, as many as there are numbers in the input.

    Notes
    -----
    The sum is kept between two steps, so that each of them costs the same. To see it at work::

        for value in values:
            print("the value of this step is", value)

    References
    ----------
    .. [1] A. Author, "A title of a paper that is long enough to be taken for a sentence.", 1999.

    Examples
    --------
    >>> running_mean([1, 2, 3], window=2)
    array([1. , 1.5, 2.5])
    """

GOOGLE = """Writes the table to a file, so that it can be read again by any other program.

Args:
    path (str): The file that is written to, which must not be there before the call.
    mode (str): How the file is opened and whether it is replaced by the new one.

.. note::
    This is indented, and although it is a sentence of words it is left out.

- An item of a list, which is not taken for a paragraph, although it has a verb.
  Its second line belongs to it and must not be taken for a paragraph on its own.

```python
table = read_the_table_that_was_written_before("and this is code, not text.")
```

See `the manual <https://example.org/manual>`_ or the [**guide**](https://example.org)
for how all of it is used in practice.
"""


def test_only_the_sentences_of_a_numpydoc_docstring_remain():
    assert extract_paragraphs(NUMPYDOC) == [
        "Return the running mean of a series of numbers, one value for each of them.",
        "The mean of the first elements is taken over what is there, and window limits how far back the function "
        "looks. See fmean for how it is done.",
        "The sum is kept between two steps, so that each of them costs the same.",
    ]


def test_only_the_sentences_of_a_google_docstring_remain():
    assert extract_paragraphs(GOOGLE) == [
        "Writes the table to a file, so that it can be read again by any other program.",
        "See the manual or the guide for how all of it is used in practice.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "too short to be of use.",
        "this starts in lower case, so it is the rest of something that stood before it in the text.",
        "A heading that does not end like a sentence and is followed by something that was left out of it",
        "Use >>> to start the example that is shown in the text, and then look at what it prints for you.",
        "See https://example.org for the rest of the text, which is not given in this place for want of room.",
        "The value is x = y[0] when the first of the two is given, and it is None when it is not given to it.",
        "The path is src/lib/file and this is where the text of the program can be found by those who look.",
        "Name First Second Third Fourth Fifth Sixth Seventh Eighth Ninth Tenth Eleventh Twelfth Thirteenth.",
        "Die Funktion gibt den Mittelwert der Zahlen aus, und zwar für jede von ihnen einen eigenen Wert zurück.",
        "Numbers such as 1.25, 3.75, 19.5, 20.25, 21.125, 77.5, 88.25 and 99.125 are what the table of it has.",
        "The read_table and write_table of the my_table module call to_file and from_file on the open_file of it.",
    ],
)
def test_what_is_no_prose_is_refused(text):
    assert not is_prose(text)


def test_a_plain_sentence_is_prose():
    assert is_prose("The order of the rows is the same on every machine, and asking for more of them changes none.")
