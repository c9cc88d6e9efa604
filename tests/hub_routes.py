"""What the fake Hub answers: one function per kind of request, on the repositories in memory."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.hub_repos import Blob, Repo, is_lfs


@dataclass(frozen=True)
class Call:
    """One request, with the repositories that it is about."""

    repos: dict[tuple[str, str], Repo]
    base_url: str
    headers: Any
    body: bytes
    query: dict[str, list[str]]
    is_authorised: bool

    def readable(self, kind: str | None, repo: str) -> Repo:
        found = self.repos.get(((kind or "models").rstrip("s"), repo))
        if found is None or (found.is_private and not self.is_authorised):
            raise RefusalError(404 if self.is_authorised else 401, "RepoNotFound")
        return found

    def writable(self, repo: str) -> Repo:
        if not self.is_authorised:
            raise RefusalError(401, "", "Invalid credentials in Authorization header")
        return self.readable("models", repo)


@dataclass(frozen=True)
class Answer:
    """Body, status and headers of a response."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class RefusalError(Exception):
    """An answer of the Hub that says no, with the code that huggingface_hub turns into an error class."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        self.answer = Answer(
            json.dumps({"error": message or code}).encode(),
            status,
            {"X-Error-Code": code, "X-Error-Message": message or code},
        )


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(json.dumps(value).encode(), status, {"Content-Type": "application/json"})


def _files_at(repo: Repo, revision: str) -> tuple[str, dict[str, Blob]]:
    found = repo.files_at(revision)
    if found is None:
        raise RefusalError(404, "RevisionNotFound")
    return found


def _get_nothing(call: Call) -> Answer:
    return as_json({})


def _get_info(call: Call, *, kind: str, repo: str, revision: str | None = None) -> Answer:
    found = call.readable(kind, repo)
    sha, files = _files_at(found, revision or "main")
    facts = {"_id": repo, "id": repo, "sha": sha, "private": found.is_private, "gated": found.is_gated}
    siblings = [{"rfilename": path} for path in files]
    return as_json({**facts, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})


def _get_tree(call: Call, *, kind: str, repo: str, revision: str, folder: str | None = None) -> Answer:
    _, files = _files_at(call.readable(kind, repo), revision)
    prefix = f"{folder}/" if folder else ""
    below = [path for path in files if path.startswith(prefix)]
    if folder and not below:
        raise RefusalError(404, "EntryNotFound")
    folders = {str(parent) for path in below for parent in Path(path).parents if str(parent) != "."}
    entries = [files[path].as_tree_entry(path) for path in below]
    entries += [
        {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}
        for path in sorted(folders)
        if path.startswith(prefix)
    ]
    if call.query.get("recursive", ["false"])[0].lower() != "true":
        entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(prefix)]
    return as_json(entries)


def _post_paths_info(call: Call, *, kind: str, repo: str, revision: str) -> Answer:
    _, files = _files_at(call.readable(kind, repo), revision)
    try:
        paths = json.loads(call.body)["paths"]
    except ValueError:
        paths = parse_qs(call.body.decode())["paths"]
    return as_json([files[path].as_tree_entry(path) for path in paths if path in files])


def _get_file(call: Call, *, repo: str, revision: str, path: str, kind: str | None = None) -> Answer:
    found = call.readable(kind, repo)
    if found.is_gated and not call.is_authorised:
        raise RefusalError(403 if "Authorization" in call.headers else 401, "GatedRepo")
    sha, files = _files_at(found, revision)
    if path not in files:
        raise RefusalError(404, "EntryNotFound")
    blob = files[path]
    headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes", "ETag": f'"{blob.git_oid}"'}
    if blob.is_lfs:
        headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.content))}
    part = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("Range", ""))
    if part is None:
        return Answer(blob.content, 200, headers)
    start, end = int(part[1]), min(int(part[2] or len(blob.content)), len(blob.content) - 1)
    headers["Content-Range"] = f"bytes {start}-{end}/{len(blob.content)}"
    return Answer(blob.content[start : end + 1], 206, headers)


def _post_create(call: Call) -> Answer:
    if not call.is_authorised:
        raise RefusalError(401, "", "Invalid credentials in Authorization header")
    asked = json.loads(call.body)
    name = f"{asked.get('organization') or 'me'}/{asked['name']}"
    address = {"url": f"{call.base_url}/{name}", "name": name}
    if ("model", name) in call.repos:
        return as_json({"error": "You already created this model repo", **address}, 409)
    repo = call.repos["model", name] = Repo("model", name, is_private=asked.get("visibility") == "private")
    repo.add_first_commit()
    return as_json(address)


def _post_validate_yaml(call: Call) -> Answer:
    return as_json({"errors": [], "warnings": []})


def _post_preupload(call: Call, *, repo: str, revision: str) -> Answer:
    _, known = _files_at(call.writable(repo), revision)
    modes = []
    for file in json.loads(call.body)["files"]:
        path = file["path"]
        blob = known.get(path)
        oid = None if blob is None else blob.sha256 if blob.is_lfs else blob.git_oid
        mode = "lfs" if is_lfs(path, file["size"]) else "regular"
        modes.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return as_json({"files": modes})


def _post_lfs_batch(call: Call, *, repo: str) -> Answer:
    found = call.writable(repo)
    objects = json.loads(call.body)["objects"]
    for item in objects:
        if item["oid"] not in found.lfs_objects:
            upload = f"{call.base_url}/lfs/{repo}/{item['oid']}?signature=signed-{item['oid'][:8]}"
            verify = f"{call.base_url}/{repo}.git/info/lfs/objects/verify"
            item["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
    return as_json({"transfer": "basic", "objects": objects})


def _put_lfs_object(call: Call, *, repo: str, oid: str) -> Answer:
    blob = Blob(call.body, is_lfs=True)
    if blob.sha256 != oid:
        raise RefusalError(400, "", "the content does not have this hash")
    call.repos["model", repo].lfs_objects[oid] = blob.content
    return Answer()


def _post_verify(call: Call, *, repo: str) -> Answer:
    is_there = json.loads(call.body)["oid"] in call.writable(repo).lfs_objects
    return as_json({}, 200 if is_there else 404)


def _post_branch(call: Call, *, repo: str, branch: str) -> Answer:
    found = call.writable(repo)
    if found.files_at(branch) is not None:
        return as_json({"error": "Reference already exists"}, 409)
    found.add_branch(branch)
    return as_json({})


def _post_commit(call: Call, *, repo: str, revision: str) -> Answer:
    try:
        sha = call.writable(repo).apply(call.body, revision)
    except (KeyError, ValueError) as error:
        raise RefusalError(412, "", str(error)) from None
    url = f"{call.base_url}/{repo}/commit/{sha}"
    return as_json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})


_KIND = r"(?P<kind>models|datasets)"
_REPO = r"(?P<repo>[^/]+/[^/]+)"
_REVISION = r"(?P<revision>[^/]+)"
ROUTES: tuple[tuple[str, Callable[..., Answer]], ...] = (
    (r"GET /api/agent-harnesses", _get_nothing),
    (rf"GET /api/{_KIND}/{_REPO}(/revision/{_REVISION})?", _get_info),
    (rf"GET /api/{_KIND}/{_REPO}/tree/{_REVISION}(/(?P<folder>.+))?", _get_tree),
    (rf"POST /api/{_KIND}/{_REPO}/paths-info/{_REVISION}", _post_paths_info),
    (rf"(GET|HEAD) /(?:(?P<kind>datasets)/)?{_REPO}/resolve/{_REVISION}/(?P<path>.+)", _get_file),
    (r"POST /api/repos/create", _post_create),
    (r"POST /api/validate-yaml", _post_validate_yaml),
    (rf"POST /api/models/{_REPO}/preupload/{_REVISION}", _post_preupload),
    (rf"POST /{_REPO}\.git/info/lfs/objects/batch", _post_lfs_batch),
    (rf"POST /{_REPO}\.git/info/lfs/objects/verify", _post_verify),
    (rf"PUT /lfs/{_REPO}/(?P<oid>[0-9a-f]{{64}})", _put_lfs_object),
    (rf"POST /api/models/{_REPO}/branch/(?P<branch>.+)", _post_branch),
    (rf"POST /api/models/{_REPO}/commit/{_REVISION}", _post_commit),
)
"""`METHOD /path` -> the function that answers; named groups are its arguments."""
