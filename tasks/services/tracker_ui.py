"""`make mlflow`: send what any tracker missed, then open MLflow's UI on this machine."""

import argparse
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ddp_audit.process.redaction import redact
from tasks.params import Params, load_params
from tasks.process.failure import ExitCode, ResourceError, exit_with_one_line
from tasks.process.logs import configure_logging
from tasks.services.own_site import OwnSite, make_credentials, write_private
from tasks.services.tracker import send_pending
from tasks.services.trackers import mlflow

_log = logging.getLogger(__name__)

_ACCESS = Path(".work/mlflow.env")
"""There while the UI is served; readable by its user alone."""
_RUNS_PAGE = "/runs"
# By itself MLflow opens a chat over a third of the page at the first visit; what it remembers of that visit.
TO_RUNS = (
    "<!doctype html><script>localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', true);"
    "location.replace({page})</script>"
)


def serve(params: Params, *, port: int) -> None:
    """Serve MLflow's UI of the store, on loopback and to this user alone, until Ctrl-C.

    A tracking server has its own UI. Raises ResourceError if the port is somebody else's.
    """
    if "mlflow" not in params.tracking.kinds:
        _log.info("tracking.kind has no mlflow, so there is no page of it to open")
        return
    uri = mlflow.choose_uri(params.tracking.uri)
    if uri.startswith(("http://", "https://")):
        _log.info("the runs are in the tracking server %s", redact(uri))
        return
    address = f"http://127.0.0.1:{port}"
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ResourceError(
            f"port {port} is not to be had ({os.strerror(error.errno or 0)}); free it, or choose another one: "
            "MLFLOW_PORT=5001 make mlflow"
        ) from None
    user, _, password = (credentials := make_credentials()).partition(":")
    write_private(_ACCESS, f"MLFLOW_TRACKING_USERNAME={user}\nMLFLOW_TRACKING_PASSWORD={password}\n")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(ExitCode.OK))
    try:
        with listening:
            site = mlflow.make_site(uri)

            async def lead(scope: Scope, receive: Receive, send: Send) -> None:
                app: ASGIApp = site
                if (scope["type"], scope.get("path")) == ("http", _RUNS_PAGE):
                    page = mlflow.find_runs_page(uri, params.tracking.experiment)
                    app = HTMLResponse(TO_RUNS.format(page=json.dumps(page)))
                await app(scope, receive, send)

            app = OwnSite(lead, address=address, credentials=credentials)
            _log.info("MLflow on %s%s (Ctrl-C ends it), runs from %s", address, _RUNS_PAGE, redact(uri))
            _log.info("the user name and the password that it asks for stand in %s", _ACCESS)
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
    finally:
        _ACCESS.unlink(missing_ok=True)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.services.tracker_ui", description=__doc__)
    parser.add_argument("--port", type=int, default=os.environ.get("MLFLOW_PORT", "5000"))
    parser.add_argument("--only-send", action="store_true", help="send what any tracker missed and open no UI")
    arguments = parser.parse_args()
    configure_logging()
    params = load_params()
    is_sent = send_pending(params)
    if arguments.only_send:
        if not is_sent:
            raise ResourceError("the tracker cannot be reached; run the same again when it can")
        return
    serve(params, port=arguments.port)


if __name__ == "__main__":
    exit_with_one_line(_main, name="mlflow")
