"""Publishing to a Hub on loopback that speaks the real protocol, with the faults that a network has."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.canaries import SECRETS, CommandLines, files_with_a_secret
from tests.finished_comparison import make_finished_comparison, read_json
from tests.hub_server import HubServer
from tests.warm.environment import warm_environment
from tests.workspace import Workspace

pytestmark = pytest.mark.slow

TOKEN = SECRETS["HF_TOKEN"]
OTHER = "hf_otherOtherOtherOtherOtherOther02"
STAGE = (
    "python -m tasks.upload --base-model data/base_model --runs data/runs --reports reports --staged reports/hub "
    "--receipt data/upload.json --inputs data/fingerprint/stages/upload.json"
)
MODULES = ["safetensors.torch", "transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2"]
IN_HASTE = """
from tasks.services import hub_calls
hub_calls.WAITS_SECONDS = (0.1, 0.1, 0.1)
"""
PUBLISH = """
import logging
from pathlib import Path
from tasks.services import publishing
from tasks.records.run import PublicationManifest
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
class Publisher:
    """A folder of files and the Hub that it is published to, each time by a process of its own."""

    folder: Path
    hub: HubServer

    def write(self, files):
        for name, content in files.items():
            file = self.folder / "published" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def run(self, program=PUBLISH, *, token=TOKEN):
        ended = self.hub.run(self.folder, ["-c", program], token=token)
        assert TOKEN not in ended.stdout + ended.stderr
        assert "signature=" not in ended.stdout + ended.stderr
        return ended

    @property
    def repo(self):
        return self.hub.repos["model", "owner/tiny"]

    def requires_equal(self):
        """Assert that the Hub holds exactly the local files, byte by byte."""
        assert _list_contents(self.repo.files) == _read(self.folder / "published")


@pytest.fixture
def publisher(tmp_path):
    with HubServer(tokens=(TOKEN,)) as hub:
        yield Publisher(tmp_path, hub)
        assert hub.unknown == []


BRANCHES = ("0-8-epoch-1", "8-16-epoch-1")


@pytest.fixture
def programs(publisher):
    """Programs that start at once; libraries look where the Hub is when they are imported."""
    with warm_environment(publisher.hub.environment(cache=publisher.folder / "cache"), modules=MODULES) as programs:
        yield programs


def test_stage_is_done_only_once_published_with_a_branch_for_each_epoch_and_a_second_run_sends_nothing(
    publisher, programs, project
):
    hub, without_token = publisher.hub, publisher.hub.environment(cache=publisher.folder / "cache")
    work = Workspace.create(publisher.folder / "work", project=project, changes={}, programs=programs)
    make_finished_comparison(work.folder, repo_id="owner/tiny, revisions: per_epoch")
    refused = work.repro("--single-item", "fingerprint", "upload", ok=False, **without_token)
    assert refused.returncode != 0
    assert "there is no token; set HF_TOKEN" in refused.stdout
    assert (work.folder / "reports/index.html").is_file()
    assert hub.requests == []

    with CommandLines() as command_lines:
        said = work.repro("--single-item", "upload", **{**without_token, "HF_TOKEN": TOKEN}).stdout
    assert (command_lines.found, command_lines.num_looks > 5) == (set(), True)
    repo = publisher.repo
    assert repo.is_private
    staged, runs = work.folder / "reports/hub", work.folder / "data/runs/2proc/segments"
    # Beside main's files, what was staged of each branch.
    wanted = {name: content for name, content in _read(staged).items() if not name.startswith("revisions/")}
    assert _list_contents(repo.files) == wanted
    assert set(repo.branches) == {"main", *BRANCHES}
    weights = [repo.files["model.safetensors"].sha256]
    for branch in BRANCHES:
        assert [message for _, message, _ in repo.branches[branch]] == ["initial commit", f"tiny: cell 2proc, {branch}"]
        _, files = repo.files_at(branch) or ("", {})
        assert _list_contents(files) == _read(staged / "revisions" / branch)
        name = f"tiny_qwen2_{branch}.pt"
        assert files[f"checkpoints/{name}"].content == (runs / branch / name).read_bytes()
        assert f'from_pretrained("owner/tiny", revision="{branch}")' in files["README.md"].content.decode()
        assert "report/results.json" in files
        weights.append(files["model.safetensors"].sha256)
    assert weights[1] != weights[2] == weights[0], "the last epoch's are the final weights"
    receipt = read_json(work.folder / "data/upload.json")
    assert (receipt["status"], receipt["cell"], receipt["commit"]) == ("published", "2proc", repo.head)
    assert receipt["url"] == f"{hub.url}/owner/tiny/tree/{repo.head}"
    assert receipt["revisions"] == {branch: repo.branches[branch][-1][0] for branch in BRANCHES}

    hub.requests.clear()
    said += work.run(*STAGE.split(), **{**without_token, "HF_TOKEN": TOKEN}).stdout
    assert said.count("nothing changed, nothing sent") == 3
    assert hub.count("PUT|commit/|preupload") == 0
    assert read_json(work.folder / "data/upload.json") == receipt
    # Of what was sent before that failed nobody knows.
    refused = work.run(*STAGE.split(), ok=False, **{**without_token, "HF_TOKEN": OTHER})
    assert (refused.returncode, (work.folder / "data/upload.json").exists()) == (2, False)
    assert TOKEN not in said
    assert files_with_a_secret(publisher.folder) == []


def test_publishing_converges_in_one_commit_through_faults(publisher):
    publisher.write(FILES)
    for pattern in ("POST /api/repos/create", "objects/batch"):
        publisher.hub.fail("500", pattern)
    for pattern in ("PUT", COMMIT):
        publisher.hub.fail("lose answer", pattern)
    ended = publisher.run(IN_HASTE + PUBLISH)
    assert ended.returncode == 0, ended.stderr
    assert {fault.times for fault in publisher.hub.faults} == {0}
    assert [message for _, message, _ in publisher.repo.branches["main"]] == ["initial commit", "publish"]
    publisher.requires_equal()
    assert ended.stdout == f"5 {publisher.repo.head}\n"


def test_killed_in_mid_upload_nothing_is_visible_and_the_next_run_sends_what_is_missing(publisher):
    publisher.write(FILES)
    second = "PUT .*/" + hashlib.sha256(b"second").hexdigest()
    publisher.hub.fail("500", second, times=1000)
    process = publisher.hub.start(publisher.folder, ["-c", PUBLISH], token=TOKEN)
    while publisher.hub.count(second) == 0 or len(publisher.repo.lfs_objects) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert set(publisher.repo.files) == {".gitattributes"}
    publisher.hub.faults.clear()
    publisher.hub.requests.clear()
    ended = publisher.run()
    assert ended.returncode == 0, ended.stderr
    assert publisher.hub.count("PUT") == 1
    publisher.requires_equal()


@pytest.mark.parametrize(
    ("token", "kind", "pattern", "code", "said"),
    [
        (TOKEN, "503", ".", 4, "pending: owner/tiny: the Hub could not be reached (HTTP 503, 4 tries)"),
        (TOKEN, "stall", ".", 4, "pending: owner/tiny: the Hub could not be reached (TimeoutError, 4 tries)"),
        (TOKEN, "403", COMMIT, 2, "HTTP 403: injected"),
        (TOKEN, "400", COMMIT, 4, "HTTP 400: injected; change"),
        (OTHER, "503", "nothing", 2, "HTTP 401: Invalid credentials in Authorization header"),
    ],
)
def test_a_hub_that_is_down_silent_or_refuses_ends_in_one_line_and_bounded_tries(
    token, kind, pattern, code, said, publisher
):
    publisher.write(FILES)
    publisher.hub.fail(kind, pattern, times=1000)
    haste = IN_HASTE + "hub_calls._LIMITS_SECONDS['read'] = 0.2" * (kind == "stall")
    ended = publisher.run(haste + PUBLISH, token=token)
    assert (ended.returncode, said in ended.stderr.splitlines()[-1]) == (code, True), ended.stderr
    assert "hf_other" not in ended.stderr
    assert pattern != "." or publisher.hub.count("POST /api/repos/create") == 4


def test_nothing_is_sent_to_a_public_repository_unless_params_say_so_and_then_what_changed_alone(publisher):
    publisher.write(FILES)
    publisher.hub.add_repo("model", "owner/tiny")
    ended = publisher.run()
    assert (ended.returncode, publisher.hub.count("PUT|commit/|preupload|branch/")) == (2, 0), ended.stderr
    assert "upload.private: false" in ended.stderr.splitlines()[-1]
    in_public = PUBLISH.replace("is_private=True", "is_private=False")
    assert publisher.run(in_public).stdout.startswith("5 ")
    publisher.requires_equal()

    publisher.repo.apply(b'{"key": "header", "value": {"summary": "by hand"}}\n'
                         b'{"key": "file", "value": {"path": "LICENSE", "content": "TUlU"}}')  # fmt: skip
    publisher.write({"checkpoints/a.pt": b"another first"})
    (publisher.folder / "published/checkpoints/b.pt").unlink()
    publisher.hub.requests.clear()
    ended = publisher.run(in_public)
    assert ended.stdout == f"2 {publisher.repo.head}\n", ended.stderr  # the checkpoint and the manifest
    assert (publisher.hub.count("PUT"), publisher.hub.count(COMMIT)) == (1, 1)
    assert publisher.repo.files.pop("LICENSE").content == b"MIT"
    publisher.requires_equal()


def _read(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _list_contents(files):
    """Return what the Hub holds, but for what it put there itself."""
    return {path: blob.content for path, blob in files.items() if path != ".gitattributes"}
