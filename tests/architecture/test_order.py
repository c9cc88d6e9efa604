"""Which tests begin."""

from pathlib import Path

from tests.conftest import LONGEST


def test_every_file_that_begins_is_there(project: Path) -> None:
    assert [name for name in LONGEST if not (project / "tests" / name).is_file()] == []
