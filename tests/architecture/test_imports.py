"""Who may import whom, held by import-linter, and what a rank really loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_import_rules_of_pyproject_hold(project: Path) -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-cache"], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.slow
def test_a_rank_loads_nothing_of_the_pipeline(project: Path) -> None:
    code = (
        "import sys, json, training.__main__, training.workloads.causal_lm, training.strategies.ddp.step\n"
        "names = {'prefect', 'mlflow', 'dvc', 'pandas', 'matplotlib', 'datasets', 'rich', 'tasks', 'flows'}\n"
        "print(json.dumps(sorted(names & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
