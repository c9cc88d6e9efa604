"""A table in a document, between two marks: rows that are made anew are replaced, the others stay as they are."""

from collections.abc import Mapping, Sequence

END = "<!-- end -->"


def replace_rows(
    text: str,
    rows: Mapping[str, Sequence[str]],
    *,
    begin: str,
    headings: Sequence[str],
    order: Sequence[str],
    note: str,
) -> str:
    """Return the document with these rows in the table that follows the mark `begin`.

    `rows`: the first cell of a row -> all its cells. `order`: the first cells, in the order of the table; a row that is
    not named there is left out. `note`: what stands below the table.
    """
    before, _, rest = text.partition(begin)
    old, _, after = rest.partition(END)
    assert after, f"the document has no {begin} ... {END}"
    known = {line.split("|")[1].strip(): line for line in old.splitlines() if line.startswith("| ")}
    known |= {key: _line(cells) for key, cells in rows.items()}
    lines = [_line(headings), "|" + "---|" * len(headings), *(known[key] for key in order if key in known)]
    return "\n".join([before + begin, *lines, "", note, END + after])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
