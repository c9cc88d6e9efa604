import pytest
from markdown_it import MarkdownIt

from tasks.reporting.markdown import escape
from tasks.reporting.results import Results
from tests.tasks.reporting.hostile import NAMES, hostile
from tests.tasks.reporting.rendered import markdown_of


def test_every_table_has_as_many_cells_in_each_row_as_in_its_head(clean_results: Results) -> None:
    for results in (clean_results, hostile(clean_results)):
        tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown_of(results))
        num_cells: list[int] = []
        for token in tokens:
            if token.type == "tr_open":
                num_cells.append(0)
            elif token.type in ("th_open", "td_open"):
                num_cells[-1] += 1
            elif token.type == "table_close":
                assert len(set(num_cells)) == 1
                num_cells = []


@pytest.mark.parametrize("text", [*NAMES.values(), "a_b _c_ *d* `e`", "x\n| y |\n# z", "![i](j) <b>", r"\| \\"])
def test_escaped_text_is_read_back_as_it_was(text: str) -> None:
    rendered = MarkdownIt("gfm-like", {"linkify": False}).parse(f"| h |\n| --- |\n| {escape(text)} |")
    cell = next(token for token in rendered if token.type == "inline" and token.content != "h")
    assert cell.children is not None
    assert {child.type for child in cell.children} <= {"text", "text_special"}
    assert "".join(child.content for child in cell.children) == " ".join(text.split())
