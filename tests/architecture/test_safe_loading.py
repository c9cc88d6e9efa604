"""Nothing in the product can run what a file holds: the calls that could are looked for in the syntax trees."""

import ast
import contextlib
import importlib.metadata
import re

import pytest

from tests.processes import run_python
from training.process.safe_loading import UnsafeTorchError, require_safe_torch

_FOLDERS = ("flows", "tasks", "training", "benchmarks")
_FORBIDDEN = re.compile(
    r"(c?pickle|_pickle|dill|cloudpickle|joblib|shelve|marshal)\.(loads?|Unpickler|open)"
    r"|(pd|pandas)\.read_pickle|torch\.(jit\.load|package\..*|hub\.load.*)|(np|numpy)\.(fromfile|loads)"
    r"|yaml\.(unsafe_load|full_load|load_all|unsafe_load_all|full_load_all)|eval|exec|__import__"
    r"|(torch\.distributed|dist)\.\w*_object(_list)?"
    r"|(dist_cp|dcp|torch\.distributed\.checkpoint)\.load.*|getattr\(torch, 'load'\)"
)
_REMOTE = re.compile(r"(.*Auto|kind|getattr).*\.(from_pretrained|from_config)")


def faults_of(source):
    """Return every call in the source that could run what a file holds."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if (
            _FORBIDDEN.fullmatch(name)
            or (name.endswith("torch.load") and given.get("weights_only") != "True")
            or {given.get("allow_pickle", "False"), given.get("trust_remote_code", "False")} != {"False"}
            or (_REMOTE.fullmatch(name) and "trust_remote_code" not in given)
            or (name == "yaml.load" and "Safe" not in given.get("Loader", ""))
            or (name == "YAML" and given.get("typ") not in ("'safe'", "'rt'"))
        ):
            found.append(f"line {call.lineno}: {ast.unparse(call)[:100]}")
    return found


@pytest.mark.parametrize("folder", _FOLDERS)
def test_no_call_can_run_what_a_file_holds(folder, project):
    files = sorted((project / folder).rglob("*.py"))
    assert files
    faults = {str(file): faults_of(file.read_text()) for file in files}
    assert {file: found for file, found in faults.items() if found} == {}


_UNSAFE = """
torch.load(file)
torch.load(file, weights_only=False)
torch.load(file, weights_only=safe)
pickle.load(file)
dist.broadcast_object_list(values, src=0)
torch.distributed.all_gather_object(values, value)
pickle.loads(raw)
pickle.Unpickler(file)
joblib.load(file)
pd.read_pickle(file)
np.load(file, allow_pickle=True)
yaml.load(file)
yaml.unsafe_load(file)
YAML(typ='unsafe')
YAML()
AutoConfig.from_pretrained(folder)
AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
getattr(transformers, kind).from_config(config)
eval(text)
"""


@pytest.mark.parametrize("source", _UNSAFE.strip().splitlines())
def test_every_such_call_would_be_found(source):
    assert faults_of(source)


@pytest.mark.parametrize(("version", "is_safe"), [("2.9.1", False), ("1.13", False), ("2.10.0", True), ("3.0", True)])
def test_a_torch_that_loads_unsafely_is_refused(version, is_safe, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    told = rf"torch: got {re.escape(version)}; allowed: 2\.10 or later"
    with contextlib.nullcontext() if is_safe else pytest.raises(UnsafeTorchError, match=told):
        require_safe_torch()


def test_a_command_refuses_such_a_torch_before_it_does_anything(tmp_path):
    code = (
        "import importlib.metadata as metadata, runpy, sys\n"
        "version = metadata.version\n"
        "metadata.version = lambda name: '2.9.0' if name == 'torch' else version(name)\n"
        "sys.argv = ['train']\n"
        "runpy.run_module('tasks.train', run_name='__main__')\n"
    )
    done = run_python("-c", code, folder=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, []), done.stderr
    assert done.stderr.startswith("train: torch: got 2.9.0; allowed: 2.10 or later")
