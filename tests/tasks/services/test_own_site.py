"""A web server of ours answers its own user, under its own address, and nobody else."""

import asyncio
import base64
import stat

import httpx
import pytest
from starlette.responses import PlainTextResponse

from tasks.services.own_site import OwnSite, keep_credentials, make_credentials, make_private_folder, write_private

ADDRESS = "http://127.0.0.1:5000"


def _ask(credentials, path="/", *, given=None, **headers):
    if given is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(given.encode()).decode()
    app = OwnSite(PlainTextResponse("inside"), address=ADDRESS, credentials=credentials)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS) as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": ADDRESS}, 200),
        ({"Origin": "http://127.0.0.1:4200"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "127.0.0.1:5001"}, 403),
        ({"Host": ""}, 403),
    ],
)
def test_only_requests_to_its_own_address_from_its_own_pages_come_in(headers, status):
    assert _ask(None, **headers).status_code == status


def test_credentials_are_asked_for_as_a_browser_understands_and_only_the_right_ones_open():
    credentials = make_credentials()
    refused = _ask(credentials)
    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, 'Basic realm="ddp-compare"')
    assert "inside" not in refused.text
    for wrong in (make_credentials(), credentials[:-1], credentials + "x", ":"):
        assert _ask(credentials, given=wrong).status_code == 401
    assert _ask(credentials, Authorization=f"Bearer {credentials}").status_code == 401
    assert _ask(credentials, given=credentials).text == "inside"
    assert _ask(credentials, "/health").status_code == 200
    assert _ask(credentials, "/health/x").status_code == 401


def test_websocket_is_refused_like_any_other_request():
    said = []

    async def connect():
        async def send(message):
            said.append(message)

        async def receive():
            raise AssertionError("nothing is asked")

        app = OwnSite(PlainTextResponse("inside"), address=ADDRESS, credentials="a:b")
        await app({"type": "websocket", "path": "/", "headers": [(b"host", b"127.0.0.1:5000")]}, receive, send)

    asyncio.run(connect())
    assert [message["type"] for message in said] == ["websocket.close"]


def test_private_file_is_private_whatever_stood_there_and_whatever_the_umask(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    (folder / "secret").write_text("older and longer than what follows")
    (folder / "secret").chmod(0o666)
    make_private_folder(folder)
    write_private(folder / "secret", "new")
    assert (folder / "secret").read_text() == "new"
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_login_stays_until_its_file_is_deleted_damaged_or_open_to_others(tmp_path):
    file = tmp_path / "login"
    first = keep_credentials(file)
    assert (keep_credentials(file), stat.S_IMODE(file.stat().st_mode)) == (first, 0o600)
    seen = {first}
    elsewhere = tmp_path / "elsewhere"

    def link():
        file.rename(elsewhere)
        file.symlink_to(elsewhere)

    for spoil in (file.unlink, lambda: file.write_text(""), lambda: file.chmod(0o640), link):
        spoil()
        assert keep_credentials(file) not in seen
        assert stat.S_IMODE(file.lstat().st_mode) == 0o600
        seen.add(keep_credentials(file))
    assert len(seen) == 5
