"""What the flow says about itself: short lines for a person, the same in the Prefect log of the run."""

import logging

from prefect.logging.handlers import APILogHandler


def set_up_flow_log() -> None:
    """Send the lines of `flows` to stderr and to the Prefect run that they belong to; calling it twice is fine."""
    flows = logging.getLogger("flows")
    if flows.handlers:
        return
    terminal = logging.StreamHandler()
    terminal.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    flows.addHandler(terminal)
    flows.addHandler(APILogHandler())
    flows.setLevel(logging.INFO)
    flows.propagate = False


def get_line_logger() -> logging.Logger:
    """Return the logger for lines of a stage, which stand on the terminal already: to the Prefect log alone."""
    lines = logging.getLogger("flows.lines")
    if not lines.handlers:
        lines.addHandler(APILogHandler())
        lines.propagate = False
    return lines
