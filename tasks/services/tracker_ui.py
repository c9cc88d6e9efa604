"""`make mlflow`: send what the tracker missed, then open MLflow's UI on this machine."""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

from tasks.params import Params, load_params
from tasks.services.tracked import Comparison, tracking_uri
from tasks.services.tracker import PENDING, send_report
from tasks.stage.failure import ResourceError, exit_with_one_line
from tasks.stage.logs import configure_logging
from training.files import digest_of_file
from training.redaction import redacted

_log = logging.getLogger(__name__)


def send_pending(params: Params) -> bool:
    """Send the report that the tracker missed; return False if it still cannot be reached."""
    if not PENDING.is_file():
        return True
    pending = json.loads(PENDING.read_bytes())
    for folder, digest in pending["cells"].items():
        file = Path(folder) / "run.json"
        if not file.is_file() or digest_of_file(file) != digest:
            _log.info("tracker: %s has changed since the report that was missed; its own report sends it", file)
            PENDING.unlink()
            return True
    comparison = Comparison(uri=tracking_uri(params), **pending["comparison"])
    reports = Path(pending["reports"])
    results = json.loads((reports / "results.json").read_bytes())
    return send_report(comparison, results, reports=reports, cells=[Path(folder) for folder in pending["cells"]])


def serve(uri: str, *, port: int) -> None:
    """Become MLflow's UI of the store, on loopback; Ctrl-C ends it. A tracking server has its own UI."""
    if uri.startswith(("http://", "https://")):
        _log.info("the runs are in the tracking server %s", redacted(uri))
        return
    _log.info("MLflow on http://127.0.0.1:%d (Ctrl-C ends it), runs from %s", port, redacted(uri))
    # Without these MLflow starts four workers and a job queue: 2.7 GB of memory in place of 0.5.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    # By environment: a command line is readable by everyone on the machine.
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri
    arguments = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *arguments])


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.services.tracker_ui", description=__doc__)
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--only-send", action="store_true", help="send what the tracker missed and open no UI")
    arguments = parser.parse_args()
    configure_logging()
    params = load_params()
    is_sent = send_pending(params)
    if arguments.only_send:
        if not is_sent:
            raise ResourceError("the tracker cannot be reached; run the same again when it can")
        return
    serve(tracking_uri(params), port=arguments.port)


if __name__ == "__main__":
    exit_with_one_line(_main, name="mlflow")
