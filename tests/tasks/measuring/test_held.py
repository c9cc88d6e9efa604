"""What a rank holds beside an adapter, by hand."""

import pytest

from tasks.measuring.session import count_beside_adapter
from tasks.params.train import LoraParams
from tasks.process.failure import ConfigurationError
from tests.tiny import make_tiny_model
from training.workloads import causal_lm


def test_beside_an_adapter_a_rank_holds_rounded_weights_and_moments_and_gradient_of_its_factors(tmp_path):
    # As in small true models, the embedding is most of it, which no base rounds.
    model = make_tiny_model(tmp_path / "model", vocab_size=4096)
    num_parameters = sum(part.numel() for part in causal_lm.outline_model(model).parameters())
    adapter = LoraParams(rank=4, alpha=8.0, targets=["q_proj"], base="nf4")

    def count(device, **changes):
        return count_beside_adapter(
            adapter.model_copy(update=changes), model, workload="causal_lm", num_parameters=num_parameters,
            device=device,
        )  # fmt: skip

    whole, held = count("cuda", base=None), count("cuda")
    assert whole == count("cpu")
    # Two layers of 64 inputs and 64 outputs.
    assert whole.of_variant == held.of_variant == 4 * 2 * 4 * (64 + 64)
    assert whole.shared == 4 * num_parameters + 3 * whole.of_variant
    # Of each layer's queries and outputs, keys and values, and three of twice the size: 4 bits in the place of 32, and
    # a number of 32 for every 64 of them.
    num_rounded = 2 * 64 * (2 * 64 + 2 * 32 + 3 * 128)
    assert whole.shared - held.shared == pytest.approx((32 - 4 - 32 / 64) / 8 * num_rounded, abs=1)
    with pytest.raises(ConfigurationError, match="got query, of which Qwen2ForCausalLM has no linear layer"):
        count("cpu", targets=["query"])
