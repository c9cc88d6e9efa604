"""`make licences`: the licence of every package of requirements.lock, and whether one has a known vulnerability.

Those of requirements-extras.lock count too, their licences where they are installed (`make extras`). Licences come
from the installed packages' own metadata and have to be on the list in pyproject.toml ([tool.licences]).
Vulnerabilities come from osv.dev, all packages in one question; where it cannot be reached nothing is checked, and that
is said. (pip-audit asks once per package, `uv audit` wants a lock of its own kind.)
"""

import contextlib
import fnmatch
import importlib.metadata
import json
import os
import re
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

SERVICE = "https://api.osv.dev/v1/querybatch"
SECONDS_TO_WAIT = 4.0

_LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[[^\]]*\])?==([^ ;\\]+)", re.MULTILINE)
_LICENCE = re.compile(r"[^\s()]+(?: WITH [^\s()]+)?")
# Words of older metadata -> SPDX. A classifier that names a family (BSD) stands for its permissive members.
_WORDS = """
3-Clause BSD License = BSD-3-Clause
Apache 2.0 License = Apache-2.0
Apache License 2.0 = Apache-2.0
Apache Software License = Apache-2.0
Apache Software License 2.0 = Apache-2.0
BSD = BSD-3-Clause
BSD License = BSD-3-Clause
ISC License (ISCL) = ISC
MIT License = MIT
Mozilla Public License 2.0 (MPL 2.0) = MPL-2.0
Python Software Foundation License = PSF-2.0
Zope Public License = ZPL-2.1
"""
_SAME = dict(line.split(" = ") for line in _WORDS.strip().splitlines())
_NO_LICENCE = {"OSI Approved", "DFSG approved"}


def locked_packages(lock):
    """Return (name, version) of every package of the lock: those for other systems, and two of a name, included."""
    return _LOCKED.findall(lock.read_text())


def licence_of(metadata, classifiers):
    """Return an SPDX expression; None where the metadata names no licence that can be told."""
    if expression := metadata.get("License-Expression"):
        return expression
    kinds = {line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")} - _NO_LICENCE
    if kinds:
        return " AND ".join(sorted(_SAME.get(kind, kind.replace(" ", "_")) for kind in kinds))
    words = str(metadata.get("License") or "").strip()
    return _SAME.get(words, words) if 0 < len(words) <= 60 else None


def is_allowed(expression, allowed):
    """Return whether one can keep to allowed licences: one side of every OR, both sides of every AND."""
    words = _LICENCE.sub(
        lambda found: found[0].lower() if found[0] in ("AND", "OR") else str(found[0] in allowed), expression
    )
    try:
        return eval(words, {"__builtins__": {}})
    except SyntaxError:
        return False


def licence_faults(names, rules, *, locked=()):
    """Yield a line for each package whose licence is not allowed or not known, and for each exception without use.

    `locked`: packages that an exception may be for although they are not looked at.
    """
    allowed, exceptions = set(rules["licences"]), rules["exceptions"]
    meant = {pattern for pattern in exceptions if any(fnmatch.fnmatchcase(name, pattern) for name in (*names, *locked))}
    for name in sorted(set(names)):
        licence = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            metadata = importlib.metadata.metadata(name)
            licence = licence_of(metadata, metadata.get_all("Classifier") or [])
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in exceptions):
            continue
        if licence is None:
            yield f"{name}: its licence cannot be told; look it up and name it in [tool.licences.exceptions]"
        elif not is_allowed(licence, allowed):
            yield f"{name}: got the licence {licence}; allowed: {', '.join(sorted(allowed))}"
    for pattern in sorted(set(exceptions) - meant):
        yield f"[tool.licences.exceptions] {pattern}: no package of a lock is meant; remove it"


def known_vulnerabilities(packages):
    """Return (name, version) -> ids of its known vulnerabilities; OSError or ValueError where they were not learned."""
    queries = [{"package": {"ecosystem": "PyPI", "name": name}, "version": version} for name, version in packages]
    asked = urllib.request.Request(
        os.environ.get("AUDIT_SERVICE", SERVICE),
        data=json.dumps({"queries": queries}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=SECONDS_TO_WAIT) as answer:
        results = json.load(answer)["results"]
    return {
        package: [each["id"] for each in result.get("vulns", [])]
        for package, result in zip(packages, results, strict=True)
    }


def main(root):
    rules = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["licences"]
    packages, extras = locked_packages(root / "requirements.lock"), root / "requirements-extras.lock"
    names = [name for name, _ in packages]
    if extras.is_file():
        packages = list(dict.fromkeys([*packages, *locked_packages(extras)]))
        # What is installed of them.
        names += [name for name, _ in packages if name not in names and [*importlib.metadata.distributions(name=name)]]
    faults = list(licence_faults(names, rules, locked=[name for name, _ in packages]))
    print(f"licences: {len(names)} packages, {len(rules['exceptions'])} exceptions named, {len(faults)} faults")
    try:
        found = known_vulnerabilities(packages)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"vulnerabilities: NOTHING WAS CHECKED, osv.dev could not be asked ({type(error).__name__})")
    else:
        accepted = set(rules["vulnerabilities"])
        open_ones = {name: sorted(set(ids) - accepted) for name, ids in found.items() if set(ids) - accepted}
        print(f"vulnerabilities: {len(packages)} packages asked about, {len(open_ones)} with open ones")
        faults += [
            f"{name} {version}: {', '.join(ids)}; take another version" for (name, version), ids in open_ones.items()
        ]
    for fault in faults:
        print(f"  {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
