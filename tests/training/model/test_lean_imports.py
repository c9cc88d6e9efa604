"""What a rank need not import to train a language model, it does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import make_tiny_model

pytestmark = pytest.mark.slow

_LOAD = """
import sys
from pathlib import Path
from training.loop import train  # as a rank does, before it loads the model
from training.workloads.{workload} import load_model
load_model(Path(sys.argv[1]))
print(sorted({{"scipy", "sklearn", "torchvision"}} & set(sys.modules)))
import scipy, torchvision
"""


def _run(code: str, model: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("workload", ["causal_lm", "sequence_classification"])
def test_loading_a_model_leaves_scipy_and_torchvision_alone_and_they_can_be_imported_later(
    workload: str, tmp_path: Path
) -> None:
    assert _run(_LOAD.format(workload=workload), make_tiny_model(tmp_path)) == "[]"


def test_nothing_is_hidden_from_a_transformers_that_has_asked_already(tmp_path: Path) -> None:
    # As `upload` does it; transformers asks for scipy here and imports it with the model.
    asked_before = "from transformers import GenerationConfig\n" + _LOAD.format(workload="causal_lm")
    assert "scipy" in _run(asked_before, make_tiny_model(tmp_path))


def test_saving_a_model_leaves_deepspeed_alone_which_can_be_imported_later(tmp_path: Path) -> None:
    save = """
import sys
from pathlib import Path
from transformers import Qwen2Config, Qwen2ForCausalLM
from tasks.data.builtin.random_weights import draw_weights
config = Qwen2Config(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                     num_key_value_heads=1)
draw_weights(Path(sys.argv[1]), lambda: Qwen2ForCausalLM(config))
print("deepspeed" in sys.modules)
"""
    assert _run(save, tmp_path) == "False"
