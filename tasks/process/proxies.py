"""What is for this machine goes through no proxy, whatever the environment says."""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KEPT = "DDP_COMPARE_NO_PROXY"
"""What no_proxy was before a process and its children were told to use no proxy at all."""


def bypass_proxies_on_loopback() -> None:
    """From now on this process and its children talk to 127.0.0.1 directly; other hosts are left as they were."""
    listed = [host for host in _read().split(",") if host.strip()]
    if "*" not in listed:
        _set(os.environ, ",".join([*listed, *(host for host in _LOOPBACK if host not in listed)]))


def bypass_proxies_to(url: str) -> None:
    """Have Prefect's client ignore proxies if its server is on this machine: it fails for one that it cannot use."""
    if urlsplit(url).hostname in _LOOPBACK and _KEPT not in os.environ:
        os.environ[_KEPT] = _read()
        _set(os.environ, "*")


def restore_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process that may need them again: a stage that downloads."""
    restored = dict(environment)
    if _KEPT in restored:
        _set(restored, restored.pop(_KEPT))
    return restored


def _read() -> str:
    return os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""


def _set(environment: "os._Environ[str] | dict[str, str]", value: str) -> None:
    environment.update(no_proxy=value, NO_PROXY=value)
