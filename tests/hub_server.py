"""A Hugging Face Hub on loopback for tests: the real protocol, in memory, with faults on demand.

    with HubServer() as hub:
        hub.add_repo("model", "owner/name", folder)
        hub.fail("500", r"POST .*/commit/", times=2)
        subprocess.run(command, env={**os.environ, **hub.environment(cache=tmp_path, token="hf_...")})

huggingface_hub reads HF_ENDPOINT when it is imported: give the environment to a child process.
Spoken: repository info, tree, paths-info, resolve (with ranges), create, branch, preupload, LFS batch and upload,
commit.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from werkzeug.wrappers import Request, Response

from tests.loopback import Loopback

_PROJECT = Path(__file__).resolve().parents[1]
PAGE = b"<!DOCTYPE html><title>Sign in</title>"
_LFS_SUFFIXES = (".safetensors", ".pt", ".bin", ".parquet")


def _is_lfs(path, num_bytes):
    """Return True if the Hub keeps such a file in git-lfs: by its suffix (.gitattributes)."""
    return num_bytes > 0 and path.endswith(_LFS_SUFFIXES)


@dataclass(frozen=True)
class Blob:
    """The content of one file."""

    content: bytes
    is_lfs: bool

    @property
    def sha256(self):
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git_oid(self):
        """The git hash of the file, or of its pointer file if the content is kept by git-lfs."""
        content = self.content
        if self.is_lfs:
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(content)}\n"
            content = pointer.encode()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def as_tree_entry(self, path):
        entry = {"type": "file", "path": path, "size": len(self.content), "oid": self.git_oid}
        if self.is_lfs:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": 130}
        return entry


@dataclass
class Repo:
    """One repository: its commits, newest last, each with all its files."""

    is_private: bool = False
    is_gated: bool = False
    branches: dict = field(default_factory=lambda: {"main": []})
    """The commits of every branch, newest last, from where it began: (sha, message, all files by path)."""
    lfs_objects: dict = field(default_factory=dict)
    """Uploaded content by sha256, whether a commit names it or not."""

    @property
    def head(self):
        return self.branches["main"][-1][0]

    @property
    def files(self):
        """The files of main's newest commit."""
        return self.branches["main"][-1][2]

    def files_at(self, revision):
        """Return the commit and its files that a branch or commit stands for; None if there is none."""
        every = [one for part in self.branches.values() for one in part if one[0] == revision]
        commits = self.branches.get(revision, every)
        return (commits[-1][0], commits[-1][2]) if commits else None

    def add_commit(self, files, message, branch="main"):
        commits = self.branches[branch]
        tree = {path: blob.git_oid for path, blob in files.items()}
        text = json.dumps([branch, len(commits), message, tree], sort_keys=True)
        commits.append((hashlib.sha1(text.encode()).hexdigest(), message, dict(files)))
        return commits[-1][0]

    def add_folder(self, folder):
        """Commit the files of a local folder, as they stand, on top of nothing."""
        found = (file for file in sorted(folder.rglob("*")) if file.is_file())
        files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}
        blobs = {path: Blob(content, _is_lfs(path, len(content))) for path, content in files.items()}
        return self.add_commit(blobs, "add files")

    def apply(self, lines, branch="main"):
        """Apply the body of a commit request (NDJSON) to a branch and return the new commit.

        Raises KeyError if it names what is not there, ValueError if its parent is not the head.
        """
        head, files = self.files_at(branch)
        message, files = "", dict(files)
        for operation in map(json.loads, lines.splitlines()):
            key, value = operation["key"], operation["value"]
            if key == "header":
                message = value["summary"]
                if value.get("parentCommit", head) != head:
                    raise ValueError("the parent commit is not the head")
            elif key == "file":
                files[value["path"]] = Blob(base64.b64decode(value["content"]), is_lfs=False)
            elif key == "lfsFile":
                files[value["path"]] = Blob(self.lfs_objects[value["oid"]], is_lfs=True)
            else:  # "deletedFile"
                del files[value["path"]]
        return self.add_commit(files, message, branch)


@dataclass
class Fault:
    """What goes wrong with the next `times` requests whose `METHOD /path` the pattern matches.

    drop: the connection closes before the request is looked at. lose answer: the request is carried out and the
    connection closes instead of an answer. stall: no answer comes.
    flip: one bit of the body is another. portal: a web page answers, as in a network that wants a login; login: it is
    somewhere else, and the answer leads there.
    """

    kind: str
    """One of those, or a status: 400, 403, 429, which asks to wait for an hour, 500, 503."""
    pattern: str
    times: int


class HubServer:
    """The fake Hub as a context manager; `requests` is what arrived, `METHOD /path` each, `repos` what it holds."""

    def __init__(self, *, tokens=()):
        self.tokens = tokens
        """What may write, and read private and gated repositories."""
        self.repos = {}
        """(model or dataset, id) -> repository."""
        self.requests = []
        self.unknown = []
        """Requests that this server has no answer for."""
        self.faults = []
        self.is_closing = threading.Event()
        self._lock = threading.Lock()
        self._loopback = Loopback(self._respond)
        self.url = self._loopback.url

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_closing.set()
        self._loopback.close()

    def environment(self, *, cache, token=None):
        """Return the variables that make a child process use this Hub, with its cache below `cache`."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_TOKEN": token or "",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }

    def start(self, folder, command, *, token=None, **more):
        """Start our Python with these words in a folder, with this Hub and a cache there."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**own, **self.environment(cache=folder / "cache", token=token), "PYTHONPATH": str(_PROJECT), **more},
        )  # fmt: skip

    def run(self, folder, command, **options):
        """The same, to its end."""
        process = self.start(folder, command, **options)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess([], process.returncode, out, err)

    def add_repo(self, kind, repo_id, folder=None, **flags):
        """Create a repository with the files of a local folder, or as a new one is; flags: is_private, is_gated."""
        repo = self.repos[kind, repo_id] = Repo(**flags)
        if folder is None:
            repo.add_commit({".gitattributes": Blob(b"*.safetensors filter=lfs\n", False)}, "initial commit")
        else:
            repo.add_folder(folder)
        return repo

    def fail(self, kind, pattern, *, times=1):
        """Let the next `times` requests that match go wrong."""
        self.faults.append(Fault(kind, pattern, times))

    def count(self, pattern):
        """Return how many requests arrived whose `METHOD /path` the pattern matches."""
        return sum(bool(re.search(pattern, line)) for line in self.requests)

    def _respond(self, environment, start):
        """Answer as a WSGI application does; what raises ConnectionError has the connection closed without a word."""
        request = Request(environment)
        line = f"{request.method} {request.path}"
        request.get_data()
        with self._lock:
            self.requests.append(line)
            fault = next((one for one in self.faults if one.times > 0 and re.search(one.pattern, line)), None)
            if fault is not None:
                fault.times -= 1
        kind = "" if fault is None else fault.kind
        if kind == "stall":
            self.is_closing.wait()
        if kind in ("drop", "stall"):
            raise ConnectionResetError
        if kind.isdecimal():
            answer = _as_json({"error": "injected"}, int(kind))
            answer.headers["Retry-After"] = "3600" if kind == "429" else "0"
        elif kind == "login" and request.path != "/login":
            answer = Response(PAGE, 302, {"Location": f"{self.url}/login"}, mimetype="text/html")
        elif kind in ("portal", "login") or request.path == "/login":
            answer = Response(PAGE, mimetype="text/html")
        else:
            answer = self._carry_out(request, line)
        if kind == "flip" and answer.data:
            answer.data = bytes([answer.data[0] ^ 1]) + answer.data[1:]
        if kind == "lose answer":
            raise ConnectionResetError
        return answer(environment, start)

    def _carry_out(self, request, line):
        for pattern, route in _ROUTES:
            if match := re.fullmatch(pattern, line.replace("HEAD", "GET", 1)):
                try:
                    with self._lock:
                        return route(Call(self, request), **match.groupdict())
                except RefusalError as refusal:
                    return refusal.answer
        self.unknown.append(line)
        return _as_json({"error": f"the fake Hub does not know {line}"}, 404)


class RefusalError(Exception):
    """An answer of the Hub that says no, with the code that huggingface_hub turns into an error class."""

    def __init__(self, status, code, message=""):
        self.answer = _as_json({"error": message or code}, status)
        self.answer.headers |= {"X-Error-Code": code, "X-Error-Message": message or code}


def _as_json(value, status=200):
    return Response(json.dumps(value), status, mimetype="application/json")


@dataclass(frozen=True)
class Call:
    """One request, with the repositories that it is about."""

    hub: HubServer
    request: Request

    @property
    def is_authorised(self):
        return self.request.headers.get("Authorization", "").removeprefix("Bearer ") in self.hub.tokens

    @property
    def asked(self):
        """What the body says, which is JSON."""
        return json.loads(self.request.get_data())

    def readable(self, kind, repo):
        found = self.hub.repos.get((kind.rstrip("s"), repo))
        if found is None or (found.is_private and not self.is_authorised):
            raise RefusalError(404 if self.is_authorised else 401, "RepoNotFound")
        return found

    def read_files(self, kind, repo, revision):
        """Return a commit and its files."""
        found = self.readable(kind, repo).files_at(revision)
        if found is None:
            raise RefusalError(404, "RevisionNotFound")
        return found


def _get_info(call, kind, repo, revision):
    found = call.readable(kind, repo)
    sha, files = call.read_files(kind, repo, revision or "main")
    siblings = [{"rfilename": path} for path in files]
    return _as_json({"id": repo, "sha": sha, "private": found.is_private, "siblings": siblings})


def _get_tree(call, kind, repo, revision, folder):
    _, files = call.read_files(kind, repo, revision)
    prefix = f"{folder}/" if folder else ""
    entries = {path: files[path].as_tree_entry(path) for path in files if path.startswith(prefix)}
    if folder and not entries:
        raise RefusalError(404, "EntryNotFound")
    for above in sorted({str(parent) for path in entries for parent in Path(path).parents}):
        if above != "." and above.startswith(prefix):
            entries[above] = {"type": "directory", "path": above, "oid": "0" * 40, "size": 0}
    is_whole = call.request.args.get("recursive", "false").lower() == "true"
    return _as_json([entries[path] for path in entries if is_whole or "/" not in path.removeprefix(prefix)])


def _post_paths_info(call, kind, repo, revision):
    _, files = call.read_files(kind, repo, revision)
    paths = call.request.form.getlist("paths")
    return _as_json([files[path].as_tree_entry(path) for path in paths if path in files])


def _get_file(call, kind, repo, revision, path):
    kind = kind or "models"
    if call.readable(kind, repo).is_gated and not call.is_authorised:
        raise RefusalError(401, "GatedRepo")
    sha, files = call.read_files(kind, repo, revision)
    if path not in files:
        raise RefusalError(404, "EntryNotFound")
    blob = files[path]
    headers = {"X-Repo-Commit": sha, "ETag": f'"{blob.git_oid}"'}
    if blob.is_lfs:
        headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.content))}
    answer = Response(blob.content, headers=headers, mimetype="application/octet-stream")
    return answer.make_conditional(call.request, accept_ranges=True, complete_length=len(blob.content))


def _post_create(call):
    if not call.is_authorised:
        raise RefusalError(401, "", "Invalid credentials in Authorization header")
    asked = call.asked
    name = f"{asked['organization']}/{asked['name']}"
    address = {"url": f"{call.hub.url}/{name}", "name": name}
    if ("model", name) in call.hub.repos:
        return _as_json({"error": "You already created this model repo", **address}, 409)
    call.hub.add_repo("model", name, is_private=asked.get("visibility") == "private")
    return _as_json(address)


def _post_preupload(call, repo, revision):
    _, known = call.read_files("models", repo, revision)
    modes = []
    for file in call.asked["files"]:
        path = file["path"]
        blob = known.get(path)
        oid = None if blob is None else blob.sha256 if blob.is_lfs else blob.git_oid
        mode = "lfs" if _is_lfs(path, file["size"]) else "regular"
        modes.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return _as_json({"files": modes})


def _post_lfs_batch(call, repo):
    found, objects = call.readable("models", repo), call.asked["objects"]
    for item in objects:
        if item["oid"] not in found.lfs_objects:
            upload = f"{call.hub.url}/lfs/{repo}/{item['oid']}?signature=signed-{item['oid'][:8]}"
            item["actions"] = {"upload": {"href": upload}}
    return _as_json({"transfer": "basic", "objects": objects})


def _put_lfs_object(call, repo, oid):
    call.hub.repos["model", repo].lfs_objects[oid] = call.request.get_data()
    return Response()


def _post_branch(call, repo, branch):
    found = call.readable("models", repo)
    if found.files_at(branch) is not None:
        return _as_json({"error": "Reference already exists"}, 409)
    found.branches[branch] = found.branches["main"][-1:]
    return _as_json({})


def _post_commit(call, repo, revision):
    try:
        sha = call.readable("models", repo).apply(call.request.get_data(), revision)
    except (KeyError, ValueError) as error:
        raise RefusalError(412, "", str(error)) from None
    url = f"{call.hub.url}/{repo}/commit/{sha}"
    return _as_json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})


_REPO = "(?P<repo>[^/]+/[^/]+?)"
_KIND = f"/api/(?P<kind>models|datasets)/{_REPO}"
_REVISION = "(?P<revision>[^/]+)"
_ROUTES = (
    ("GET /api/agent-harnesses", lambda _: _as_json({})),
    (f"GET {_KIND}(?:/revision/{_REVISION})?", _get_info),
    (f"GET {_KIND}/tree/{_REVISION}(?:/(?P<folder>.+))?", _get_tree),
    (f"POST {_KIND}/paths-info/{_REVISION}", _post_paths_info),
    (f"GET /(?:(?P<kind>datasets)/)?{_REPO}/resolve/{_REVISION}/(?P<path>.+)", _get_file),
    ("POST /api/repos/create", _post_create),
    ("POST /api/validate-yaml", lambda _: _as_json({"errors": [], "warnings": []})),
    (f"POST /api/models/{_REPO}/preupload/{_REVISION}", _post_preupload),
    (f"POST /{_REPO}.git/info/lfs/objects/batch", _post_lfs_batch),
    (f"PUT /lfs/{_REPO}/(?P<oid>[^/]+)", _put_lfs_object),
    (f"POST /api/models/{_REPO}/branch/(?P<branch>.+)", _post_branch),
    (f"POST /api/models/{_REPO}/commit/{_REVISION}", _post_commit),
)
"""`METHOD /path`, and what answers it."""
