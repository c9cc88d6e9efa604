"""Who counts as a Prefect server that answers, and what as a damaged database."""

import contextlib
import sqlite3

import pytest
from werkzeug.wrappers import Response

from flows.server import _set_damaged_aside, is_reachable
from tasks.process.failure import ResourceError
from tests.loopback import Loopback


@pytest.mark.parametrize(("status", "answers"), [(200, True), (401, True), (403, True), (502, False)])
def test_one_that_asks_who_is_there_answers_and_a_proxy_in_front_of_none_does_not(status, answers):
    server = Loopback(Response(status=status))
    assert is_reachable(f"{server.url}/api") is answers
    server.close()
    assert not is_reachable(f"{server.url}/api")


def test_a_database_on_a_full_disk_is_not_taken_for_a_damaged_one(small_disk):
    database, fill = small_disk / "prefect.db", small_disk / "fill"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE runs (name)")
    with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with pytest.raises(ResourceError, match=r"prefect.db: .*; mend that or free space"):
        _set_damaged_aside(database)
    fill.unlink()
    _set_damaged_aside(database)
    assert not list(small_disk.glob("*.damaged*"))
    assert database.is_file()
