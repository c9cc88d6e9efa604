"""One process for all tests of this folder that scripts are forked from: its imports take longer than most of them."""

from collections.abc import Iterator

import pytest

from tests.auditing.forked_scripts import ForkedScripts


@pytest.fixture(scope="session")
def forked() -> Iterator[ForkedScripts]:
    """Scripts under the observer, each on ranks of its own."""
    scripts = ForkedScripts()
    yield scripts
    scripts.close()
