"""`make licences` fails on what is not allowed, not known, or no longer there, and says what it could not check."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import licences

ALLOWED = {"MIT", "BSD-3-Clause", "Apache-2.0 WITH LLVM-exception"}


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only AND MIT OR BSD-3-Clause", True),
        ("BSD-3-Clause AND (GPL-3.0-only OR MIT)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0", False),
        ("", False),
        ("MIT AND", False),
        ("(MIT", False),
        ("MIT MIT", False),
    ],
)
def test_an_expression_is_allowed_if_one_can_keep_to_allowed_licences(expression: str, is_allowed: bool) -> None:
    assert licences.is_allowed(expression, ALLOWED) is is_allowed


@pytest.mark.parametrize(
    ("metadata", "classifiers", "licence"),
    [
        ({"License-Expression": "MIT"}, ["License :: OSI Approved :: BSD License"], "MIT"),
        ({}, ["License :: OSI Approved :: BSD License"], "BSD-3-Clause"),
        ({}, ["License :: OSI Approved :: MIT License", "License :: Other/Proprietary License"], None),
        ({"License": "Apache License 2.0"}, ["License :: OSI Approved"], "Apache-2.0"),
        ({"License": "Permission is hereby granted, " * 20}, [], None),
        ({}, [], None),
    ],
)
def test_a_licence_is_read_from_all_metadata_that_has_ever_held_it(
    metadata: dict[str, str], classifiers: list[str], licence: str | None
) -> None:
    found = licences.licence_of(metadata, classifiers)
    if licence is None:
        assert found is None or not licences.is_allowed(found, ALLOWED)
    else:
        assert found == licence


def test_the_lock_is_within_the_rules(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIT_SERVICE", "http://127.0.0.1:9/")
    assert licences.main(project) == 0


def test_every_package_of_the_lock_is_looked_at(project: Path) -> None:
    lines = (project / "requirements.lock").read_text().splitlines()
    packages = licences.locked_packages(project / "requirements.lock")
    assert len(packages) == len([line for line in lines if "==" in line and line[0].isalnum()]) > 200


def _rules(**changes: Any) -> dict[str, Any]:
    return {"licences": ["MIT"], "exceptions": {}, "vulnerabilities": {}} | changes


def test_what_is_not_allowed_not_known_or_not_there_is_named() -> None:
    packages = ["hypothesis", "no-such-package"]
    forbidden, unknown = licences.licence_faults(packages, _rules())
    assert forbidden.startswith("hypothesis: got the licence MPL-2.0; allowed: MIT")
    assert unknown.startswith("no-such-package: its licence cannot be told")
    named = {"hypothesis": "why", "no-*": "why", "gone": "why"}
    (left,) = licences.licence_faults(packages, _rules(exceptions=named))
    assert left.startswith("[tool.licences.exceptions] gone: no package")
    # Of an extra that is locked, and not installed.
    assert not list(licences.licence_faults(packages, _rules(exceptions=named), locked=["gone"]))


class _Service(BaseHTTPRequestHandler):
    """Answers as osv.dev does: one result per question, in order."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        known = {("jinja2", "PyPI"): [{"id": "GHSA-1", "modified": "2026-01-01T00:00:00Z"}]}
        results = []
        for query in asked:
            found = known.get((query["package"]["name"], query["package"]["ecosystem"]))
            results.append({"vulns": found} if found and query["version"] else {})
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), _Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AUDIT_SERVICE", f"http://127.0.0.1:{server.server_port}/")
    yield
    server.shutdown()
    server.server_close()


def _project(folder: Path, vulnerabilities: str = "") -> Path:
    (folder / "requirements.lock").write_text(
        "jinja2==3.1.6 \\\n    --hash=sha256:0\nrich==1.0 ; python_version < '4'\n"
    )
    (folder / "pyproject.toml").write_text(
        '[tool.licences]\nlicences = ["MIT", "BSD-3-Clause"]\n[tool.licences.exceptions]\n'
        f"[tool.licences.vulnerabilities]\n{vulnerabilities}\n"
    )
    return folder


@pytest.mark.usefixtures("service")
def test_a_known_vulnerability_fails_unless_it_is_accepted_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert licences.main(_project(tmp_path)) == 1
    assert "jinja2 3.1.6: GHSA-1" in capsys.readouterr().err
    assert licences.main(_project(tmp_path, '"GHSA-1" = "templates are ours"')) == 0
    assert "2 packages asked about, 0 with open ones" in capsys.readouterr().out


def test_without_network_it_says_that_nothing_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUDIT_SERVICE", "http://127.0.0.1:9/")
    assert licences.main(_project(tmp_path)) == 0
    assert "NOTHING WAS CHECKED" in capsys.readouterr().out
