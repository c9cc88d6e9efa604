"""Base models and revisions from a Hub on loopback that speaks the real protocol."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.hub_server import HubServer

pytestmark = pytest.mark.slow

TOKEN = "hf_canaryCanaryCanaryCanaryCanary03"
IN_HASTE = """
from tasks.services import hub_calls
hub_calls.WAITS_SECONDS = (0.1, 0.1, 0.1)
"""
FETCH = """
import logging
import sys
from pathlib import Path
from tasks.services import hub
from tasks.process.failure import exit_with_one_line

def main():
    repo_id, revision = sys.argv[1:]
    commit = hub.resolve_commit(repo_id, revision, kind="model")
    hub.download_model(repo_id, commit, Path("model"))
    print(commit)

logging.basicConfig(level=logging.INFO)
exit_with_one_line(main, name="download")
"""
TAKEN = {  # no two alike: the cache holds one file for one content, and takes it from whichever arrives first
    "config.json": b"{}",
    "generation_config.json": b'{"generation": 1}',
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b'{"tokenizer": 1}',
    "tokenizer_config.json": b'{"tokenizer_config": 1}',
    "chat_template.jinja": b"{{ messages }}",
}
LEFT = {
    "pytorch_model.bin": b"pickle",
    "training_args.pt": b"pickle",
    "modeling.py": b"1 / 0",
    "consolidated.safetensors": b"the same again",
    "onnx/model.safetensors": b"another format",
    "README.md": b"#",
}


@dataclass
class Reader:
    """A folder, the Hub, and processes that download from it."""

    folder: Path
    hub: HubServer

    def fetch(self, repo_id="owner/model", revision="main", *, program=FETCH, token=None, **environment):
        ended = self.hub.run(self.folder, ["-c", program, repo_id, revision], token=token, **environment)
        assert TOKEN not in ended.stdout + ended.stderr
        return ended

    @property
    def found(self):
        files = [path for path in (self.folder / "model").rglob("*") if not path.is_dir()]
        assert not any(file.is_symlink() for file in files)
        return {str(file.relative_to(self.folder / "model")): file.read_bytes() for file in files}


@pytest.fixture
def reader(tmp_path):
    source = tmp_path / "source"
    for name, content in {**TAKEN, **LEFT}.items():
        file = source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    with HubServer(tokens=(TOKEN,)) as hub:
        hub.add_repo("model", "owner/model", source)
        yield Reader(tmp_path, hub)
        assert hub.unknown == []


def test_a_model_arrives_without_pickles_and_code_then_works_offline_and_a_bit_that_flips_in_the_cache_is_seen(reader):
    ended = reader.fetch()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == reader.hub.repos["model", "owner/model"].head
    assert reader.found == TAKEN
    assert (reader.folder / "model/model.safetensors").stat().st_nlink == 2  # the cache holds it too
    assert (reader.folder / "model/config.json").stat().st_nlink == 1

    reader.hub.requests.clear()
    again = reader.fetch(HF_HUB_OFFLINE="1")
    assert (again.returncode, again.stdout) == (0, ended.stdout), again.stderr
    assert reader.hub.requests == []

    (weights,) = (reader.folder / "cache").rglob("snapshots/*/model.safetensors")
    (reader.folder / "model" / "model.safetensors").unlink()
    weights.resolve().write_bytes(b"W" + TAKEN["model.safetensors"][1:])
    flipped = reader.fetch(HF_HUB_OFFLINE="1")
    assert flipped.returncode == 3
    assert "model.safetensors is not what the Hub states" in flipped.stderr


_CANNOT = YAML(typ="safe", pure=True).load("""
another model:
  asked: {repo_id: owner/other}
  code: 3
  said: "model owner/other at main: not found on the Hub, or private; check the spelling"
another revision:
  {asked: {revision: v9}, code: 3, said: "model owner/model at v9: no such revision; allowed: a branch, tag or commit"}
no id:
  {asked: {repo_id: a/b/c}, code: 3, said: "model a/b/c at main: no Hub id; allowed: OWNER/NAME"}
no network:
  {fault: [drop, .], code: 4, said: "the Hub could not be reached (RemoteProtocolError, 4 tries); check the network"}
offline:
  {asked: {HF_HUB_OFFLINE: "1"}, code: 4, said: "HF_HUB_OFFLINE is set, and the local cache is not enough; unset it"}
portal:
  {fault: [portal, .], code: 4, said: "127.0.0.1: a web page answers where data was asked for"}
login:
  {fault: [login, "(GET|HEAD) .*/resolve/"], code: 4, said: "127.0.0.1: a web page answers where data was asked for"}
an hour:
  fault: ["429", GET /api/]
  code: 4
  said: "HTTP 429, and it asks to wait 3,600 s; allowed: 90 s in all; run again then"
""")


@pytest.mark.parametrize("case", _CANNOT)
def test_what_cannot_be_had_ends_in_one_line_and_bounded_tries_and_leaves_nothing(reader, case):
    wanted = _CANNOT[case]
    if "fault" in wanted:
        reader.hub.fail(*wanted["fault"], times=1000)
    ended = reader.fetch(program=IN_HASTE + FETCH, **wanted.get("asked", {}))
    assert ended.returncode == wanted["code"], ended.stderr
    assert wanted["said"] in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert wanted["code"] == 4 or len(ended.stderr.splitlines()) == 1
    assert not (reader.folder / "model").exists()
    assert case != "an hour" or len(reader.hub.requests) < 3


def test_a_gated_model_says_so_without_a_token_and_arrives_with_one(reader):
    reader.hub.repos["model", "owner/model"].is_gated = True
    ended = reader.fetch()
    assert ended.returncode == 3
    assert "access is gated; accept its terms on its page, then set HF_TOKEN (no token is set)" in ended.stderr
    assert reader.fetch(token=TOKEN).returncode == 0
    assert reader.found == TAKEN


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_flipped_bit_is_refused_not_kept_and_fetched_anew_by_the_next_run(reader, name):
    reader.hub.fail("flip", f"GET .*/resolve/.*/{name}")
    ended = reader.fetch()
    assert ended.returncode == 3
    assert f": {name} is not what the Hub states (its hash is " in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert not (reader.folder / "model").exists()
    assert [path.name for path in (reader.folder / "cache").rglob(name)] == []
    again = reader.fetch()
    assert again.returncode == 0, again.stderr
    assert reader.found == TAKEN
