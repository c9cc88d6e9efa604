"""What a rank holds beside an adapter, against the memory that torch counts in a rehearsed step."""

import pytest

from tasks.measuring.session import count_beside_adapter
from tasks.params.train import LoraParams
from tasks.process.failure import ConfigurationError
from tests.extras import skip_without
from tests.gpu.steps import read_told
from tests.tiny import make_config, make_slice, make_tiny_model
from training.rehearsal.rehearsed_step import rehearse_step
from training.workloads import causal_lm


@pytest.mark.parametrize("base", ["nf4", None])
def test_beside_an_adapter_weights_moments_and_gradient_are_those_of_a_rehearsed_step(base, tmp_path):
    skip_without("peft")
    skip_without("bitsandbytes")
    # As in small true models, the embedding is most of it, which no base rounds.
    model = make_tiny_model(tmp_path / "model", vocab_size=4096)
    slices = [make_slice(tmp_path / "slice", num_rows=8, vocab_size=4096)]
    adapter = LoraParams(rank=4, alpha=8.0, targets=["q_proj"], base=base)
    told = make_config(
        tmp_path / "work", model, slices, device="cuda", precision="fp32", adapter=adapter.model_dump(),
        global_batch_size=2, micro_batch_size=1,
    )  # fmt: skip
    step = rehearse_step(read_told(told, tmp_path), capability=(8, 0))
    num_parameters = sum(part.numel() for part in causal_lm.outline_model(model).parameters())
    held = count_beside_adapter(
        adapter, model, workload="causal_lm", num_parameters=num_parameters, device="cuda"
    )  # fmt: skip
    # Two layers of 64 inputs and 64 outputs.
    assert held.of_variant == 4 * 2 * 4 * (64 + 64)
    assert held.shared == pytest.approx(step.peak_bytes["weights"] + step.peak_bytes["moments"], rel=0.02)
    assert held.shared > 3 * num_parameters
    on_host = count_beside_adapter(
        adapter, model, workload="causal_lm", num_parameters=num_parameters, device="cpu"
    )  # fmt: skip
    assert on_host.shared == 4 * num_parameters + 3 * held.of_variant


def test_layers_that_the_model_has_not_are_said_before_a_rank_starts(tmp_path):
    adapter = LoraParams(rank=4, alpha=8.0, targets=["query"])
    with pytest.raises(ConfigurationError, match="got query, of which Qwen2ForCausalLM has no linear layer"):
        count_beside_adapter(
            adapter, make_tiny_model(tmp_path / "model"), workload="causal_lm", num_parameters=1, device="cpu"
        )
