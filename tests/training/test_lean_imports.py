"""What a rank need not import to train a language model, it does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import make_tiny_model

_LOAD = """
import sys
from pathlib import Path
from training.workloads.{workload} import load_model
load_model(Path(sys.argv[1]))
print(sorted({{"scipy", "sklearn", "torchvision"}} & set(sys.modules)))
import scipy, torchvision
"""


@pytest.mark.parametrize("workload", ["causal_lm", "sequence_classification"])
def test_loading_a_model_leaves_scipy_and_torchvision_alone_and_they_can_be_imported_later(
    workload: str, tmp_path: Path
) -> None:
    make_tiny_model(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD.format(workload=workload), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
