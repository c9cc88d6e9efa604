"""A web server of ours is for the user who started it: not for other users of the machine, not for pages of others."""

import base64
import contextlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

_HEALTH = "/health"
"""Says that the server is up, to everybody."""


def make_credentials() -> str:
    """Return `user:password` with a password that nobody can guess, another one at every call."""
    return f"ddp-compare:{secrets.token_urlsafe(24)}"


def keep_credentials(file: Path) -> str:
    """Return the credentials in a file of this user alone; where that is missing, damaged or open to others, new ones.

    A browser that was let in once is let in again, until the file is deleted.
    """
    new = make_credentials()
    with contextlib.suppress(OSError, ValueError):
        facts, kept = file.lstat(), file.read_text(encoding="ascii")
        if (facts.st_mode, facts.st_uid, len(kept)) == (stat.S_IFREG | 0o600, os.geteuid(), len(new)):
            return kept
    write_private(file, new)
    return new


def make_private_folder(folder: Path) -> None:
    """Have a folder that nobody but this user (and root) can look into."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def write_private(file: Path, text: str) -> None:
    """Write a file that nobody but this user (and root) can read at any time, in place of whatever was there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as private:
        os.fchmod(private.fileno(), 0o600)
        private.write(text)


class OwnSite:
    """An ASGI app in front of another: refuses what was not sent to its own address, by a page of it or by a program.

    A foreign Host is how a page of somebody else reaches a server on loopback as if it were its own (DNS rebinding).
    With `credentials` it also asks for these, by HTTP Basic, which a browser does in a window of its own.
    """

    def __init__(self, app: ASGIApp, *, address: str, credentials: str | None = None) -> None:
        """`address` is what a browser shows, such as http://127.0.0.1:5000."""
        self._app = app
        self._address = address
        self._authorization = credentials and "Basic " + base64.b64encode(credentials.encode()).decode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403 or 401."""
        refusal = None if scope["type"] == "lifespan" else self._find_refusal(scope)
        await (refusal or self._app)(scope, receive, send)

    def _find_refusal(self, scope: Scope) -> ASGIApp | None:
        sent: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            sent.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        is_own = sent.get("host") == [urlsplit(self._address).netloc]
        if not is_own or sent.get("origin", [self._address]) != [self._address]:
            return _refuse(scope, 403, f"This server answers at {self._address} alone.")
        given = sent.get("authorization", [""])[0]
        is_open = self._authorization is None or (scope["type"], scope["path"]) == ("http", _HEALTH)
        if is_open or hmac.compare_digest(given.encode(), str(self._authorization).encode()):
            return None
        return _refuse(scope, 401, "Credentials are needed.")


def _refuse(scope: Scope, status: int, why: str) -> ASGIApp:
    if scope["type"] == "websocket":
        return WebSocketClose(reason=why)
    wanted = {"WWW-Authenticate": 'Basic realm="ddp-compare"'} if status == 401 else None
    return PlainTextResponse(why + "\n", status_code=status, headers=wanted)
