"""Low-rank factors trained beside a model's weights, which may wait in 4 bits: on real ranks, through checkpoints."""

import pytest
import torch

from tests.extras import skip_without
from tests.gpu.steps import read_told
from tests.training.conftest import (
    are_bitwise_equal,
    facts_of,
    folder_of,
    relative_l2,
    state_at_end,
    weights_at_end,
)
from tests.training.replays import check, list_verdicts, train_checked
from training.model.adapter import adapt, round_base
from training.process.failure import UnfitModelError
from training.workloads import causal_lm

skip_without("peft")

_LORA = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": "all-linear", "base": None}
_TOLD = {"adapter": _LORA, "learning_rate": 1e-2}
_CPU = torch.device("cpu")
_LAYER = "model.layers.0.self_attn.q_proj"


def _tell(base, **changes):
    if base:
        skip_without("bitsandbytes")
    return {**_TOLD, "adapter": {**_LORA, "base": base}, **changes}


def _factors(config):
    return state_at_end(config)["adapter"]


def _load_base(toy, base):
    model = causal_lm.load_model(toy.models("tiny"))
    if base:
        round_base(model, base, device=_CPU)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("base", [None, "nf4"])
def test_a_checkpoint_is_the_ordinary_model_with_the_loss_of_the_adapted_one(base, trained, toy):
    config, source = trained(**_tell(base)), causal_lm.open_slice(toy.rows("causal_lm")[0])
    (file,) = folder_of(config).glob("tiny_*.pt")
    merged, adapted = causal_lm.load_model(toy.models("tiny"), checkpoint=file), _load_base(toy, None)
    found = adapt(adapted, read_told(config, toy.folder), device=_CPU)
    found.load_factors(_factors(config))
    batch = source.collate(range(16), seq_len=32)
    with torch.no_grad():
        of_merged, of_adapted = (float(causal_lm.loss_sum(model.eval(), batch)) for model in (merged, adapted))
    assert of_merged == pytest.approx(of_adapted, rel=1e-6)
    before, after = _load_base(toy, base).state_dict(), merged.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    # It goes on from no weights but the base with these factors.
    strategy, weights, state = toy.build(**_tell(base)), weights_at_end(config), state_at_end(config)
    digest = strategy.digest()
    other = {**weights, f"{_LAYER}.weight": weights[f"{_LAYER}.weight"] * 1.01}
    with pytest.raises(ValueError, match=f"{_LAYER}.weight is not that of the base"):
        strategy.restore(other, state)
    assert strategy.digest() == digest
    strategy.restore(weights, state)
    assert strategy.digest().parameters == facts_of(config)["parameter_checksums"]
    if base:
        with pytest.raises(ValueError, match="is not that of the base"):
            toy.build(**_tell(None)).restore(weights, state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "changes"),
    [(None, {"strategy": "ddp", "precision": "fp16"}), ("nf4", {"strategy": "zero1", "precision": "bf16"})],
    ids=str,
)
def test_two_ranks_exchange_factors_alone_go_on_to_the_same_bits_and_one_process_knows_factors_and_base(
    base, changes, ranks, trained, toy
):
    told = _tell(base, world_size=2, **changes)
    whole, stopped = (check(toy.tell(name, **told), 4) for name in ("whole", "stopped"))
    assert list_verdicts(train_checked(ranks, whole)) == [("passed", None)]
    assert any(ranks.launch(stopped, fault="rank=0,step=3,kind=sigterm"))
    wrong = {"base": None} if base else {"alpha": 8.1}
    (found,) = train_checked(ranks, stopped, told={**stopped, "adapter": {**told["adapter"], **wrong}})
    assert found["verdict"] == "failed"
    assert "weights that are not trained are others" in found["problem"]
    assert found["compared"]["gradient"]["difference"] > found["compared"]["gradient"]["tolerance"]
    assert facts_of(stopped)["num_resumes"] == 1
    for read in (weights_at_end, _factors):
        assert are_bitwise_equal(read(stopped), read(whole))
        assert {part.dtype for part in read(whole).values()} == {torch.float32}
        # Rounded otherwise in every layer, and still the same training.
        assert relative_l2(read(whole), read(trained(**_tell(base)))) < 0.05
    if not base:
        facts, num_bytes = facts_of(whole), sum(part.nbytes for part in _factors(whole).values())
        assert facts["traffic"]["all_reduce"]["num_bytes"] == num_bytes * facts["num_steps"]


@pytest.mark.parametrize("targets", [["q_proj", "query"], ["lm_head"], ["embed_tokens"]], ids=str)
def test_a_target_that_is_no_linear_layer_below_the_head_is_refused_with_those_that_are(targets, toy):
    told = toy.read(model="untied", adapter={**_LORA, "targets": targets})
    with pytest.raises(UnfitModelError, match=f"got {targets[-1]}, .*allowed: down_proj, gate_proj, k_proj"):
        adapt(causal_lm.load_model(told.model_dir), told, device=_CPU)
