"""Repositories of the fake Hub, in memory: commits of files, as git and git-lfs name them."""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LFS_SUFFIXES = (".safetensors", ".pt", ".bin", ".parquet", ".npy", ".npz", ".onnx")
_LFS_FROM_BYTES = 10_000_000


@dataclass(frozen=True)
class Blob:
    """The content of one file."""

    content: bytes
    is_lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git_oid(self) -> str:
        """The git hash of the file, or of its pointer file if the content is kept by git-lfs."""
        content = self.content
        if self.is_lfs:
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(content)}\n"
            content = pointer.encode()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def as_tree_entry(self, path: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(self.content), "oid": self.git_oid}
        if self.is_lfs:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": 130}
        return entry


@dataclass
class Repo:
    """One repository: its commits, newest last, each with all its files."""

    kind: str
    repo_id: str
    is_private: bool = False
    is_gated: bool = False
    commits: list[tuple[str, str, dict[str, Blob]]] = field(default_factory=list)
    """(sha, message, files by path)"""
    branches: dict[str, list[tuple[str, str, dict[str, Blob]]]] = field(default_factory=dict)
    """The commits of every branch beside main, newest last, from where it began."""
    lfs_objects: dict[str, bytes] = field(default_factory=dict)
    """Uploaded content by sha256, whether a commit names it or not."""

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    @property
    def files(self) -> dict[str, Blob]:
        """The files of the newest commit."""
        return self.commits[-1][2]

    def files_at(self, revision: str) -> tuple[str, dict[str, Blob]] | None:
        """Return the commit and its files that a branch or commit stands for; None if there is none."""
        commits = self._commits_of(revision)
        if commits:
            return commits[-1][0], commits[-1][2]
        every = [commit for branch in (self.commits, *self.branches.values()) for commit in branch]
        return next(((sha, files) for sha, _, files in every if sha == revision), None)

    def _commits_of(self, branch: str) -> list[tuple[str, str, dict[str, Blob]]]:
        return self.commits if branch == "main" else self.branches.get(branch, [])

    def add_branch(self, branch: str) -> None:
        """Begin a branch where main stands."""
        self.branches[branch] = self.commits[-1:]

    def add_commit(self, files: dict[str, Blob], message: str, branch: str = "main") -> str:
        commits = self._commits_of(branch)
        tree = {path: blob.git_oid for path, blob in files.items()}
        text = json.dumps([self.kind, self.repo_id, branch, len(commits), message, tree], sort_keys=True)
        sha = hashlib.sha1(text.encode()).hexdigest()
        commits.append((sha, message, dict(files)))
        return sha

    def add_first_commit(self) -> str:
        """Commit what the Hub puts into a new repository."""
        return self.add_commit({".gitattributes": Blob(b"*.safetensors filter=lfs\n", False)}, "initial commit")

    def add_folder(self, folder: Path) -> str:
        """Commit the files of a local folder, as they stand, on top of nothing."""
        found = (file for file in sorted(folder.rglob("*")) if file.is_file())
        files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}
        blobs = {path: Blob(content, is_lfs(path, len(content))) for path, content in files.items()}
        return self.add_commit(blobs, "add files")

    def apply(self, lines: bytes, branch: str = "main") -> str:
        """Apply the body of a commit request (NDJSON) to a branch and return the new commit.

        Raises KeyError if it names content that was never uploaded, ValueError if its parent is not the head.
        """
        found = self.files_at(branch)
        if found is None:
            raise KeyError(branch)
        head, files = found[0], dict(found[1])
        message = ""
        for line in lines.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                message = value["summary"]
                if value.get("parentCommit", head) != head:
                    raise ValueError("the parent commit is not the head")
            elif operation["key"] == "file":
                files[value["path"]] = Blob(base64.b64decode(value["content"]), is_lfs=False)
            elif operation["key"] == "lfsFile":
                files[value["path"]] = Blob(self.lfs_objects[value["oid"]], is_lfs=True)
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
            else:
                raise ValueError(f"unknown operation {operation['key']}")
        return self.add_commit(files, message, branch)


def is_lfs(path: str, num_bytes: int) -> bool:
    """Return True if the Hub keeps such a file in git-lfs: by its suffix (.gitattributes) or its size."""
    return num_bytes > 0 and (path.endswith(_LFS_SUFFIXES) or num_bytes > _LFS_FROM_BYTES)
