"""`python -m tests.screens FOLDER`: a picture of every screen of the comparison that stands in this folder.

The page, the verdict on a terminal, MLflow, Prefect and DVC's plots, as a reader finds them after `make compare`.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from flows.server import find_or_start
from tasks.process.failure import ConfigurationError, exit_with_one_line
from tests.flows.toy_project import free_port, wait_for
from tests.processes import open_browser

_PAGE = Path("reports/index.html")
_SAY_VERDICT = "from flows.__main__ import _say_verdict; _say_verdict()"
_EXAMPLE = "docs/gallery/quiet-machine/results.json"
_LAPTOP, _PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 812}
_NUM_COLOURS = 128
_MOST_MILLISECONDS = 180_000
_MOST_PIXELS = 2400
"""From top to bottom: what is below stands in the page itself."""
_MLFLOW_ACCESS = Path(".work/mlflow.env")
_BOLD = re.compile(r"\x1b\[[0-9;]*m")


def _main():
    folder = Path(sys.argv[1])
    if not _PAGE.is_file():
        raise ConfigurationError(f"{_PAGE}: got no report; needed: one, which `make compare` leaves there")
    folder.mkdir(parents=True, exist_ok=True)
    with open_browser() as browser:
        if not browser:
            raise ConfigurationError("no chromium; install the distribution's package or set CHROMIUM")
        for take in (_take_page, _take_terminal, _take_plots, _take_mlflow, _take_prefect):
            take(browser, folder)


def _take_page(browser, folder):
    with tempfile.TemporaryDirectory() as scratch, _open(browser, viewport={"width": 1080, "height": 900}) as page:
        # README's: an example of the gallery, as today's code renders it.
        command = [sys.executable, "-m", "tasks.report", "--from-results", _EXAMPLE, "--reports", scratch]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        page.goto((Path(scratch) / "index.html").as_uri())
        end = page.locator("main section").first.evaluate("section => section.getBoundingClientRect().bottom")
        _keep(page, Path("docs/report.png"), end=int(end) + 30)
    for name, viewport, scheme, media in (
        ("page-light", _LAPTOP, "light", "screen"),
        ("page-dark", _LAPTOP, "dark", "screen"),
        ("page-phone", _PHONE, "light", "screen"),
        ("page-print", {"width": 794, "height": 1123}, "light", "print"),
    ):
        with _open(browser, viewport=viewport, color_scheme=scheme) as page:
            page.emulate_media(media=media)
            page.goto(_PAGE.resolve().as_uri())
            _keep(page, folder / f"{name}.png")


def _take_terminal(browser, folder):
    """Take the end of a comparison as terminals of 80 and of 200 columns show it."""
    for columns in (80, 200):
        said = subprocess.run(
            [sys.executable, "-c", _SAY_VERDICT], env={**os.environ, "COLUMNS": str(columns), "FORCE_COLOR": "1"},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        with _open(browser, viewport={"width": 20 + 8 * columns, "height": 100}) as page:
            page.set_content(
                "<style>body{margin:8px;background:#111;color:#eee}pre{font:13px/1.3 monospace}</style><pre>"
            )
            page.locator("pre").evaluate("(place, text) => { place.textContent = text }", _BOLD.sub("", said))
            _keep(page, folder / f"terminal-{columns}.png")


def _take_plots(browser, folder):
    with tempfile.TemporaryDirectory() as scratch, _open(browser, viewport=_LAPTOP) as page:
        subprocess.run([sys.executable, "-m", "dvc", "plots", "show", "-q", "-o", scratch], check=True)
        page.goto((Path(scratch) / "index.html").as_uri())
        _keep(page, folder / "dvc-plots.png")


def _take_mlflow(browser, folder):
    port = free_port()
    command = [sys.executable, "-m", "tasks.services.tracker_ui", "--port", str(port)]
    with _running(command), _open(browser, viewport=_LAPTOP, http_credentials=_read_mlflow_access()) as page:
        page.goto(f"http://127.0.0.1:{port}/runs")
        page.get_by_role("grid").get_by_text("embedded").first.wait_for()
        _keep(page, folder / "mlflow-runs.png")
        page.get_by_role("grid").get_by_role("link", name="embedded").first.click()
        page.get_by_text("final/speedup").first.wait_for()
        _keep(page, folder / "mlflow-run.png")


def _read_mlflow_access():
    wait_for(_MLFLOW_ACCESS.exists, seconds=120, what="MLflow's UI is served")
    found = dict(line.split("=", 1) for line in _MLFLOW_ACCESS.read_text().splitlines())
    return {"username": found["MLFLOW_TRACKING_USERNAME"], "password": found["MLFLOW_TRACKING_PASSWORD"]}


def _take_prefect(browser, folder):
    os.environ["PREFECT_SERVER_API_PORT"] = str(free_port())
    server = find_or_start(temporary=False)
    try:
        server.wait_until_ready()
        site, access = server.url.removesuffix("/api"), os.environ["PREFECT_API_AUTH_STRING"]
        with _open(browser, viewport=_LAPTOP) as page:
            # Where its own page of sign-in keeps what somebody types there.
            page.add_init_script(f"localStorage.setItem('prefect-password', btoa({json.dumps(access)}))")
            page.goto(f"{site}/runs")
            page.get_by_text("ddp-compare").first.wait_for()
            _keep(page, folder / "prefect-runs.png")
            page.get_by_text("embedded, ").first.click()
            page.get_by_text("Details", exact=True).first.click()
            # The message is the last that stands there; of the graph nothing says that it is drawn.
            page.set_viewport_size({**_LAPTOP, "height": 1200})
            page.wait_for_timeout(5_000)
            _keep(page, folder / "prefect-run.png")
            page.get_by_text("Artifacts", exact=True).first.click()
            page.get_by_text("ddp-compare-report").last.click()
            page.get_by_role("heading", name="Why not more?").first.wait_for()
            # Where the clone lies is nobody's business.
            page.get_by_text(str(Path.cwd())).first.evaluate(
                "(line, here) => { line.innerHTML = line.innerHTML.replaceAll(here, '~/ddp-compare') }", str(Path.cwd())
            )
            _keep(page, folder / "prefect-report.png")
    finally:
        server.end()


@contextlib.contextmanager
def _open(browser, **options):
    context = browser.new_context(**options)
    # On a machine with other work a UI takes long to come.
    context.set_default_timeout(_MOST_MILLISECONDS)
    yield context.new_page()
    context.close()


@contextlib.contextmanager
def _running(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def _keep(page, file, *, end=_MOST_PIXELS):
    """Write what the page shows down to pixel `end`, of few colours."""
    page.wait_for_timeout(500)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    cut = image.crop((0, 0, image.width, min(image.height, end)))
    cut.quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    exit_with_one_line(_main, name="screens")
