"""What the hostile tests share: what is said of a params file, which may touch nothing."""

import contextlib
import tempfile
import time
from pathlib import Path

from ddp_audit.process.redaction import redact_line
from tasks.params import load_params
from tasks.process.failure import ConfigurationError

MAX_SECONDS = 8.0
"""Here it takes a second at most; what is not refused at once takes minutes, or for ever."""


def check_params(content):
    """Return the line with which a params.yaml is refused, "" if it is good; fail if anything else comes of it."""
    said, began = "", time.process_time()
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        file = Path("params.yaml")
        file.write_bytes(content)
        try:
            load_params()
        except ConfigurationError as error:
            said = f"params: {redact_line(str(error))}\n"
        assert list(Path().iterdir()) == [file]
        assert file.read_bytes() == content
    assert time.process_time() - began < MAX_SECONDS
    if said:
        require_one_line(said)
    return said


def require_one_line(said):
    """Fail unless it is a line that names the file, and what is allowed or to be done."""
    assert said.startswith(("params: params.yaml: ", "ddp-compare: params.yaml: "))
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert said[:-1].isprintable()
    assert len(said) < 700
    assert "Traceback" not in said
    assert any(word in said for word in ("allowed: ", "must ", "missing", "; use ", "; put ")), said
