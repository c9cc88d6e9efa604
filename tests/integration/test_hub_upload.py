"""Publishing to a Hub on loopback that speaks the real protocol, with the faults that a network has."""

import contextlib
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.finished_comparison import make_finished_comparison, read_json
from tests.hub_repos import Repo
from tests.hub_server import FaultKind, HubServer
from tests.workspace import Workspace

pytestmark = pytest.mark.slow

TOKEN = "hf_canaryCanaryCanaryCanaryCanary01"
STAGE = (
    "-m tasks.upload --base-model data/base_model --runs data/runs --reports reports --staged reports/hub "
    "--receipt data/upload.json"
)
IN_HASTE = """
from tasks.services import hub_calls
hub_calls.WAITS_SECONDS = (0.1, 0.1, 0.1)
"""
PUBLISH = """
import logging
from pathlib import Path
from tasks.services import publishing
from tasks.records.publication import PublicationManifest
from tasks.process.failure import exit_with_one_line

def main():
    folder = Path("published")
    PublicationManifest.describe(folder, comparison="tiny", cell="2proc", final="a.pt").write(folder)
    found = publishing.publish(folder, "owner/tiny", is_private=True, message="publish")
    print(found.num_sent, found.commit)

logging.basicConfig(level=logging.INFO)
exit_with_one_line(main, name="upload")
"""
FILES = {
    "model.safetensors": b"weights",
    "checkpoints/a.pt": b"first",
    "checkpoints/b.pt": b"second",
    "README.md": b"#",
}
COMMIT = "POST .*/commit/main"


@dataclass
class Ended:
    """A command that ended, and how."""

    code: int
    out: str
    err: str


@dataclass
class Publisher:
    """A folder of files and the Hub that it is published to, each time by a process of its own."""

    folder: Path
    hub: HubServer
    project: Path

    def write(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            file = self.folder / "published" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def start(self, *arguments: str, token: str | None = TOKEN, **environment: str) -> subprocess.Popen[str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        hub = self.hub.environment(cache=self.folder / "cache", token=token)
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**own, **hub, "PYTHONPATH": str(self.project), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, token: str | None = TOKEN, **environment: str) -> Ended:
        process = self.start(*(arguments or ("-c", PUBLISH)), token=token, **environment)
        out, err = process.communicate(timeout=120)
        assert TOKEN not in out + err
        assert "signature=" not in out + err
        return Ended(process.returncode, out, err)

    @property
    def repo(self) -> Repo:
        return self.hub.repos["model", "owner/tiny"]

    def requires_equal(self, published: str) -> None:
        """Assert that the Hub holds exactly the local files, byte by byte, and what it put there itself."""
        local = self.folder / published
        wanted = {str(file.relative_to(local)): file.read_bytes() for file in local.rglob("*") if file.is_file()}
        found = {path: blob.content for path, blob in self.repo.files.items() if path != ".gitattributes"}
        assert found == wanted


@pytest.fixture
def publisher(tmp_path: Path, project: Path) -> Iterator[Publisher]:
    with HubServer(tokens=(TOKEN,)) as hub:
        found = Publisher(tmp_path, hub, project)
        yield found
        assert hub.unknown == []


def test_stage_is_done_only_once_published_and_a_second_run_sends_nothing(publisher: Publisher) -> None:
    work = Workspace.create(publisher.folder / "work", project=publisher.project, changes={})
    make_finished_comparison(work.folder, repo_id="owner/tiny")
    work.repro("--single-item", "fingerprint")
    without_token = publisher.hub.environment(cache=publisher.folder / "cache")
    refused = work.repro("--single-item", "upload", ok=False, **without_token)
    assert refused.returncode != 0
    assert "there is no token; set HF_TOKEN" in refused.stdout
    assert (work.folder / "reports/index.html").is_file()
    assert publisher.hub.requests == []

    with _watched_command_lines() as command_lines:
        said = work.repro("--single-item", "upload", **{**without_token, "HF_TOKEN": TOKEN}).stdout
    assert any(b"tasks.upload" in line for line in command_lines)
    assert publisher.repo.is_private
    publisher.requires_equal("work/reports/hub")
    manifest = read_json(work.folder / "reports/hub/manifest.json")["files"]
    remote = {path: blob.sha256 for path, blob in publisher.repo.files.items() if path in manifest}
    assert {path: facts["sha256"] for path, facts in manifest.items()} == remote
    receipt = read_json(work.folder / "data/upload.json")
    assert receipt == {
        "file_version": 1,
        "status": "published",
        "repo_id": "owner/tiny",
        "commit": publisher.repo.head,
        "url": f"{publisher.hub.url}/owner/tiny/tree/{publisher.repo.head}",
        "cell": "2proc",
        "num_files": 11,
        "revisions": {},
    }

    assert "didn't change" in work.repro("--single-item", "upload", **without_token).stdout
    publisher.hub.requests.clear()
    said += work.run("python", *STAGE.split(), **{**without_token, "HF_TOKEN": TOKEN}).stdout
    assert "nothing changed, nothing sent" in said
    assert publisher.hub.count("PUT|commit|preupload") == 0
    assert read_json(work.folder / "data/upload.json") == receipt

    assert TOKEN not in said
    assert not any(TOKEN.encode() in line for line in command_lines)
    written = [file for file in publisher.folder.rglob("*") if file.is_file()]
    assert not [file for file in written if TOKEN.encode() in file.read_bytes()]


def test_one_changed_file_is_sent_alone_and_a_dropped_one_is_removed(publisher: Publisher) -> None:
    publisher.write(FILES)
    assert publisher.run().out.startswith("5 ")
    publisher.repo.apply(b'{"key": "header", "value": {"summary": "by hand"}}\n'
                         b'{"key": "file", "value": {"path": "LICENSE", "content": "TUlU"}}')  # fmt: skip
    publisher.write({"checkpoints/a.pt": b"another first"})
    (publisher.folder / "published/checkpoints/b.pt").unlink()
    publisher.hub.requests.clear()
    ended = publisher.run()
    assert ended.out == f"2 {publisher.repo.head}\n", ended.err  # the checkpoint and the manifest
    assert publisher.hub.count("PUT") == 1
    assert publisher.hub.count(COMMIT) == 1
    assert publisher.repo.files["LICENSE"].content == b"MIT"
    del publisher.repo.files["LICENSE"]
    publisher.requires_equal("published")


@pytest.mark.parametrize(
    "faults",
    [
        [("500", "POST /api/repos/create"), ("drop", "PUT"), ("lose answer", COMMIT)],
        [("503", "PUT"), ("429", "preupload"), ("truncate", "GET .*/tree/")],
        [("drop", COMMIT), ("lose answer", "PUT"), ("500", "objects/batch")],
    ],
)
def test_publishing_converges_in_one_commit_through(publisher: Publisher, faults: list[tuple[FaultKind, str]]) -> None:
    publisher.write(FILES)
    for kind, pattern in faults:
        publisher.hub.fail(kind, pattern)
    ended = publisher.run()
    assert ended.code == 0, ended.err
    assert [fault.times for fault in publisher.hub.faults] == [0] * len(faults)
    assert [message for _, message, _ in publisher.repo.commits] == ["initial commit", "publish"]
    publisher.requires_equal("published")
    assert ended.out == f"5 {publisher.repo.head}\n"


def test_killed_in_mid_upload_nothing_is_visible_and_the_next_run_sends_what_is_missing(publisher: Publisher) -> None:
    publisher.write(FILES)
    process = publisher.start("-c", PUBLISH)
    publisher.hub.fail("500", "PUT .*/" + _sha256(b"second"), times=1000)
    while publisher.hub.count("PUT .*/" + _sha256(b"second")) == 0 or len(publisher.repo.lfs_objects) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert set(publisher.repo.files) == {".gitattributes"}
    publisher.hub.faults.clear()
    publisher.hub.requests.clear()
    ended = publisher.run()
    assert ended.code == 0, ended.err
    assert publisher.hub.count("PUT") == 1
    publisher.requires_equal("published")


@dataclass
class Stage:
    """The stage `upload` of a finished comparison, with a branch for each epoch."""

    publisher: Publisher
    work: Workspace

    @property
    def arguments(self) -> list[str]:
        return [*STAGE.split(), "--inputs=data/fingerprint/stages/upload.json"]

    def run(self) -> str:
        ended = self.publisher.run(*self.arguments)
        assert ended.code == 0, ended.err
        return ended.err

    def list_messages(self, branch: str) -> list[str]:
        commits = self.publisher.repo.commits if branch == "main" else self.publisher.repo.branches[branch]
        return [message for _, message, _ in commits]


@pytest.fixture
def stage(publisher: Publisher) -> Stage:
    work = Workspace.create(publisher.folder / "work", project=publisher.project, changes={})
    make_finished_comparison(work.folder, repo_id="owner/tiny, revisions: per_epoch")
    work.repro("--single-item", "fingerprint")
    publisher.folder = work.folder
    return Stage(publisher, work)


BRANCHES = ("0-8-epoch-1", "8-16-epoch-1")


def test_each_epoch_has_a_branch_of_one_commit_with_weights_card_gates_and_report(stage: Stage) -> None:
    stage.run()
    repo, runs = stage.publisher.repo, stage.work.folder / "data/runs/2proc/segments"
    assert set(repo.branches) == set(BRANCHES)
    for branch in BRANCHES:
        assert stage.list_messages(branch) == ["initial commit", f"tiny: cell 2proc, {branch}"]
        _, files = repo.files_at(branch) or ("", {})
        staged = stage.work.folder / "reports/hub/revisions" / branch
        local = {str(file.relative_to(staged)): file.read_bytes() for file in staged.rglob("*") if file.is_file()}
        assert {path: blob.content for path, blob in files.items() if path != ".gitattributes"} == local
        name = f"tiny_qwen2_{branch}.pt"
        assert files[f"checkpoints/{name}"].content == (runs / branch / name).read_bytes()
        card = files["README.md"].content.decode()
        assert f'from_pretrained("owner/tiny", revision="{branch}")' in card
        assert "equal tokens" in card, "the gates"
        assert "report/results.json" in files
    weights = [(repo.files_at(branch) or ("", {}))[1]["model.safetensors"].sha256 for branch in (*BRANCHES, "main")]
    assert weights[0] != weights[1] == weights[2], "the last epoch's are the final weights"
    assert stage.list_messages("main") == ["initial commit", "tiny: cell 2proc"]
    receipt = read_json(stage.work.folder / "data/upload.json")
    assert receipt["revisions"] == {branch: repo.branches[branch][-1][0] for branch in BRANCHES}

    stage.publisher.hub.requests.clear()
    assert stage.run().count("nothing changed, nothing sent") == 3
    assert stage.publisher.hub.count("PUT|commit/|preupload") == 0
    assert read_json(stage.work.folder / "data/upload.json") == receipt


@pytest.mark.parametrize(("kind", "said"), [("503", "HTTP 503"), ("stall", "TimeoutError")])
def test_hub_down_or_silent_ends_with_upload_pending_and_exit_code_4_in_bounded_tries(
    kind: FaultKind, said: str, publisher: Publisher
) -> None:
    publisher.write(FILES)
    publisher.hub.fail(kind, ".", times=1000)
    ended = publisher.run("-c", IN_HASTE + "hub_calls._LIMITS_SECONDS['read'] = 0.2" + PUBLISH)
    assert ended.code == 4
    assert ended.err.splitlines()[-1].startswith("upload: upload pending: owner/tiny: the Hub could not be reached")
    assert f"({said}, 4 tries)" in ended.err
    assert publisher.hub.count("POST /api/repos/create") == 4


def test_a_token_that_may_not_write_ends_with_exit_code_2_in_one_line(publisher: Publisher) -> None:
    publisher.write(FILES)
    ended = publisher.run(token="hf_otherOtherOtherOtherOtherOther02")
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith("upload: upload.repo_id: the Hub refused to write to owner/tiny")
    assert "hf_other" not in ended.err


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def _watched_command_lines() -> Iterator[set[bytes]]:
    """Yield the set into which the command lines of all processes are gathered while the block runs."""
    found: set[bytes] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.2):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    found.add(file.read_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
