from tasks.reporting.document import render_report
from tasks.reporting.drawing import select_charts
from tasks.reporting.results import read_results


def test_every_example_is_what_todays_code_makes_of_its_results(project):
    examples = [file.parent for file in (project / "docs" / "gallery").glob("*/results.json")]
    assert examples
    shown = (project / "docs" / "gallery" / "README.md").read_text()
    for folder in examples:
        results = read_results(folder / "results.json")
        assert (folder / "report.md").read_text() == render_report("markdown", results), "run `make gallery`"
        assert {file.stem for file in (folder / "charts").iterdir()} == set(select_charts(results))
        assert f"({folder.name}/report.md)" in shown
