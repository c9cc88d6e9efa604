"""Layers that keep only what goes into them: the same training, with less in memory."""

import torch

from training.model.layers import recompute_layers
from training.workloads import causal_lm


def test_less_is_kept_for_the_backward_and_each_layer_runs_twice(models):
    kept, runs = [], []
    for is_recomputed in (False, True):
        model = causal_lm.load_model(models("deep")).train()
        if is_recomputed:
            recompute_layers(model)
        sizes = {}
        calls = []
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))

        def keep(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(input_ids=torch.arange(64).reshape(2, 32) % 50).logits.square().mean()
        kept.append(sum(sizes.values()))
        loss.backward()
        runs.append(len(calls))
    assert kept[1] < kept[0] / 2
    assert runs == [4, 8]
