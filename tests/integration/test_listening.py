"""A whole comparison, measurement and training under torchrun included, is reached by nobody from outside."""

import json
import os
import re

import pytest

from tasks.process.lock import make_lock_name

pytestmark = pytest.mark.slow


def test_a_whole_comparison_listens_on_loopback_and_on_sockets_of_its_owner_alone(finished):
    found = json.loads((finished.folder.parent / "listeners.json").read_bytes())
    owners = [listener["owner"] for listener in found]
    assert any("-m training " in owner and "--serve" in owner for owner in owners)
    assert any("-m training " in owner and "--serve" not in owner for owner in owners)
    assert any("tasks.measure" in owner for owner in owners)
    # The machine's lock is a name that anybody may knock at: it reads nothing, and answers its own user alone.
    is_lock = re.compile(
        rf"@{re.escape(make_lock_name()[1:].partition('/')[0])}/[0-9a-f]{{16}}/{os.geteuid()}"
    ).fullmatch
    assert [one for one in found if one["is_open"] and not is_lock(one["address"])] == []
