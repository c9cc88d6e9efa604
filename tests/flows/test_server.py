"""Who counts as a Prefect server that answers."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flows.server import is_reachable


@pytest.mark.parametrize(("status", "answers"), [(200, True), (401, True), (403, True), (502, False)])
def test_one_that_asks_who_is_there_answers_and_a_proxy_in_front_of_none_does_not(status, answers):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert is_reachable(f"http://127.0.0.1:{server.server_port}/api") is answers
        server.shutdown()
    assert not is_reachable(f"http://127.0.0.1:{server.server_port}/api")
