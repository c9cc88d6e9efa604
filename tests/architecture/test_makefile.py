"""The Makefile: what it lists and removes, and a folder whose name a shell takes for something else."""

import fcntl
import os
import re
import shutil
import subprocess
import sys

import pytest

from tasks.process.lock import WORKSPACE

ODD = 'it\'s a [tëst] "$HOME" `ordner` *'
_RUNS = "$(shell touch was-run) $$x"

_TOOL = """printf '%s\\n' "$(basename "$0")" "$@" >> "$CALLS"
"""
_PYTHON3 = f"""[ "$1" != -c ] || exec "{sys.executable}" "$@"
"""
"""A Python that answers, and makes no environment: ensurepip takes seconds."""
_PIP = """[ "$3" != config ] || echo "$SETTING"
"""
"""What `python -m pip config list` writes."""
_UV = r"""[ -e synced ] || [ "$2" != sync ] || { touch synced; exit "$CODE"; }
"""
"""uv that once fails to sync."""
_BARE = f"""[ "$1" = -c ] || exit 1
exec "{sys.executable}" -c 'import sys; sys.modules["ensurepip"] = None; exec(sys.argv[1])' "$2"
"""
"""A Python without ensurepip."""


def _write_program(file, text):
    file.write_text(f"#!/bin/bash\n{text}")
    file.chmod(0o755)


@pytest.fixture
def odd(tmp_path, project):
    """A folder with the Makefile, and tools in `.venv` that note what they are told."""
    folder = tmp_path / ODD
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "requirements-extras.lock", "pyproject.toml"):
        shutil.copy(project / name, folder)
    for name in ("python", "uv", "dvc", "ddp-compare"):
        _write_program(bin_folder / name, _TOOL)
    _write_program(bin_folder / "python3", _PYTHON3 + _TOOL)
    return folder


def _run(folder, *arguments, answer=""):
    environment = {**os.environ, "CALLS": str(folder / "calls.txt"), "PYTHON": "python3"}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, input=answer, capture_output=True, text=True
    )


def _make(folder, *arguments):
    """Run make; return its tools' names and arguments."""
    (folder / "calls.txt").unlink(missing_ok=True)
    done = _run(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return (folder / "calls.txt").read_text().splitlines()


@pytest.mark.parametrize("has_git", [False, True])
def test_set_up_runs_in_an_odd_folder_and_tells_dvc_where_there_is_no_git(odd, has_git):
    if has_git:
        (odd / ".git").mkdir()
    said = _make(odd, "setup")
    assert said.count("venv") == 2  # Python's, and uv's
    assert {"sync", "install", "--require-hashes"} < set(said)
    assert not any(part in word for word in said for part in ("tëst", "ordner"))  # every path is relative
    assert ("core.no_scm" in said) is not has_git
    assert (odd / ".venv" / ".ready").exists()
    assert _make(odd, "compare")[-2:] == ["ddp-compare", "run"]


@pytest.mark.parametrize(
    ("torch", "locks"),
    [
        ("", ["requirements.lock"]),
        ("cuda12", [".venv/others.lock", "requirements-cuda12.lock"]),
        ("installed", [".venv/others.lock"]),
    ],
)
def test_set_up_takes_the_torch_that_is_asked_for_and_does_so_again(torch, locks, odd):
    said = _make(odd, "setup", *([f"TORCH={torch}"] if torch else []))
    begin = said.index("--require-hashes", said.index("sync"))
    assert said[begin + 1 : begin + 1 + len(locks)] == locks
    assert said.count("--system-site-packages") == 2 * (torch == "installed")
    others = (odd / ".venv" / "others.lock").read_text()
    assert ("\ntorch==" in others, "\nnvidia-ml-py==" in others, "\ntransformers==" in others) == (False, True, True)
    # A lock that changed is installed as the one before it was.
    os.utime(odd / "requirements.lock", (2**31, 2**31))
    assert locks[-1] in _make(odd, "setup")


@pytest.mark.parametrize("take", [shutil.move, shutil.copytree])
def test_an_environment_that_was_made_in_another_folder_is_made_anew(take, odd):
    _make(odd, "setup")
    other = odd.with_name("another folder")
    take(odd, other)
    said = _make(other, "compare")
    assert (said.count("--reinstall"), said[-2:]) == (2, ["ddp-compare", "run"])
    assert _make(other, "compare") == ["ddp-compare", "run"]


@pytest.mark.parametrize(
    ("setting", "code", "by_pip"),
    [
        ("global.index-url='https://me:secret@mirror.example/simple'", 2, True),
        (":env:.extra-index-url='a b'", 1, True),
        ("global.timeout='60'", 2, False),
        ("global.index-url='https://mirror.example/simple'", 130, False),
    ],
)
def test_what_uv_cannot_get_comes_through_pip_where_pip_has_an_index(setting, code, by_pip, odd, monkeypatch):
    monkeypatch.setenv("SETTING", setting)
    monkeypatch.setenv("CODE", str(code))
    for name, more in (("python", _PIP), ("uv", _UV)):
        _write_program(odd / ".venv" / "bin" / name, _TOOL + more)
    done = _run(odd, "setup")
    said = (odd / "calls.txt").read_text().splitlines()
    assert (done.returncode == 0, "-rrequirements.lock" in said, (odd / ".venv" / ".ready").exists()) == (by_pip,) * 3
    assert "secret" not in done.stdout + done.stderr


def test_a_python_without_ensurepip_is_refused_with_the_remedy(odd):
    python = odd / "a python"
    _write_program(python, _BARE)
    done = _run(odd, "setup", f"PYTHON={python}")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert f"apt install python{sys.version_info.major}.{sys.version_info.minor}-venv" in line
    assert (done.returncode, (odd / ".venv" / "torch").exists()) == (2, False)


def test_a_driver_of_cuda_12_is_refused_before_anything_is_loaded(odd):
    _write_program(odd / ".venv" / "bin" / "nvidia-smi", "echo 535.183.01\n")
    done = _run(odd, "setup")
    assert "the driver 535.183.01 is for CUDA 12" in done.stderr
    assert "TORCH=cuda12" in done.stderr
    assert (done.returncode, (odd / ".venv" / "uv.lock").exists()) == (2, False)


def test_a_preset_or_a_python_with_odd_signs_is_one_word_that_make_does_not_read(odd):
    (odd / ".venv" / ".ready").touch()
    for target, told in (("use", ["use"]), ("compare", ["run", "--preset"])):
        assert _make(odd, target, f"PRESET={ODD}{_RUNS}") == ["ddp-compare", *told, f"{ODD}{_RUNS}"]
    assert not (odd / "was-run").exists()
    other = odd / "a python"
    shutil.copy(odd / ".venv" / "bin" / "python", other)
    (odd / ".venv" / ".ready").unlink()
    assert _make(odd, "setup", f"PYTHON={other}")[0] == "a python"


@pytest.mark.parametrize(
    ("typed", "got"),
    [
        (["compare", "PRSET=imdb"], "PRSET; allowed: PYTHON PRESET"),
        (["params", "PRESET=imdb"], "PRESET; allowed: PYTHON"),
        (["test", f"GPU={_RUNS}"], "GPU; allowed: PYTHON"),
    ],
)
def test_a_variable_that_the_target_does_not_take_is_refused(typed, got, odd):
    done = _run(odd, *typed)
    assert (done.returncode, f"make {typed[0]}: got {got}" in done.stderr) == (2, True), done.stderr
    assert not (odd / "was-run").exists()


@pytest.mark.parametrize(("torch", "last"), [("", "requirements.lock"), ("cuda12", "requirements-cuda12.lock")])
def test_the_image_is_set_up_by_make(torch, last, odd, project):
    # The last of them; what make inherits is no word that was typed: it hands on what --build-arg gave.
    *_, run = re.findall(r"^RUN (.*)", (project / "Dockerfile").read_text(), flags=re.MULTILINE)
    environment = {**os.environ, "CALLS": str(odd / "calls.txt"), "TORCH": torch}
    subprocess.run(["sh", "-ec", run], cwd=odd, env=environment, check=True)
    said = (odd / "calls.txt").read_text().splitlines()
    assert said[said.index("--require-hashes", said.index("sync")) :][1:3][-1 if torch else 0] == last


@pytest.mark.parametrize(("answer", "is_held"), [("y", False), ("n", False), ("y", True)])
def test_clean_removes_what_a_comparison_made_if_told_to_and_keeps_what_says_what_stands_there(odd, answer, is_held):
    kept = ("data/README.md", "reports/README.md")
    made = ("data/runs/a/run.json", "reports/index.html", ".work/a", str(WORKSPACE), "mlflow.db", "dvc.lock")
    for name in (*kept, *made):
        (odd / name).parent.mkdir(parents=True, exist_ok=True)
        (odd / name).write_text(name)
    with (odd / WORKSPACE).open() as lock:
        if is_held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        done = _run(odd, "clean", answer=f"{answer}\n")
    is_done = answer == "y" and not is_held
    assert (done.returncode == 0) is is_done
    assert (f"folder already: {WORKSPACE}; wait" in done.stderr, "Error 4" in done.stderr) == (is_held, is_held)
    tops = ("data", "reports", ".work", "mlflow.db", "dvc.lock")
    left = {
        str(file.relative_to(odd)) for top in tops for file in (odd / top, *(odd / top).rglob("*")) if file.is_file()
    }
    assert left == {*kept, *(() if is_done else made)}
