"""A server on loopback for tests, given as a WSGI application, which stays silent."""

import threading

from werkzeug.serving import WSGIRequestHandler, make_server


class _Handler(WSGIRequestHandler):
    def log(self, *_):
        """Say nothing: tests look at what arrived."""

    def connection_dropped(self, *_):
        """Close the connection, which would be kept for a further request."""
        self.close_connection = True


class Loopback:
    """Answers from its making on, each request in a thread; a ConnectionError closes the connection without a word."""

    def __init__(self, application):
        self._server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self):
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
