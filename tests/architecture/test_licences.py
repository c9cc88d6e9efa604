"""`make licences` fails on what is not allowed, not known, or no longer there, and says what it could not check."""

from tests import licences

ALLOWED = {"MIT", "BSD-3-Clause", "Apache-2.0 WITH LLVM-exception"}
_ALLOWED = """
MIT
MIT OR GPL-3.0-only
GPL-3.0-only OR MIT
GPL-3.0-only AND MIT OR BSD-3-Clause
BSD-3-Clause AND (GPL-3.0-only OR MIT)
Apache-2.0 WITH LLVM-exception"""
_FORBIDDEN = """
GPL-3.0-only
MIT AND GPL-3.0-only
Apache-2.0
MIT AND
(MIT
MIT MIT"""


def test_an_expression_is_allowed_if_one_can_keep_to_allowed_licences():
    assert [one for one in _ALLOWED.split("\n")[1:] if not licences.is_allowed(one, ALLOWED)] == []
    # Nothing is none, too.
    assert [one for one in _FORBIDDEN.split("\n") if licences.is_allowed(one, ALLOWED)] == []


def _rules(**changes):
    return {"licences": ["MIT"], "exceptions": {}, "vulnerabilities": {}} | changes


def test_what_is_not_allowed_not_known_or_not_there_is_named():
    packages = ["hypothesis", "no-such-package"]
    forbidden, unknown = licences.licence_faults(packages, _rules())
    assert forbidden.startswith("hypothesis: got the licence MPL-2.0; allowed: MIT")
    assert unknown.startswith("no-such-package: its licence cannot be told")
    named = {"hypothesis": "why", "no-*": "why", "gone": "why"}
    (left,) = licences.licence_faults(packages, _rules(exceptions=named))
    assert left.startswith("[tool.licences.exceptions] gone: no package")
    # Of an extra that is locked, and not installed.
    assert not list(licences.licence_faults(packages, _rules(exceptions=named), locked=["gone"]))
