"""A whole comparison, measurement and training under torchrun included, is reached by nobody from outside."""

import json

import pytest

from tests.workspace import Workspace

pytestmark = pytest.mark.slow


def test_a_whole_comparison_listens_on_loopback_and_on_sockets_of_its_owner_alone(finished: Workspace) -> None:
    found = json.loads((finished.folder.parent / "listeners.json").read_bytes())
    owners = [listener["owner"] for listener in found]
    assert any("-m training " in owner and "--serve" in owner for owner in owners)
    assert any("-m training " in owner and "--serve" not in owner for owner in owners)
    assert any("tasks.measure" in owner for owner in owners)
    assert [listener for listener in found if listener["is_open"]] == []
