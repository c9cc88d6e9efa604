"""A real small model with real gradients, whose layers sleep.

Nothing here depends on what the samples hold: a micro-batch takes its time, be it long or short.
"""

import torch
from torch import nn

from tests.emulator.device import read_device
from tests.emulator.rank import EmulatedLink, EmulatedRank


class EmulatedModel(nn.Module):
    """Predicts a number for every token: the sum of what each layer has learned for it."""

    def __init__(self, model_dir):
        super().__init__()
        self.device = read_device(model_dir)
        self.rank = EmulatedRank(self.device)
        self.link = EmulatedLink(self.rank)
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.ParameterList(
            torch.randn(self.device.parameters_per_layer, generator=generator) / self.device.num_layers
            for _ in range(self.device.num_layers)
        )

    def forward(self, input_ids):
        """Return the predictions for tokens of any shape: the same shape, float32."""
        self.rank.join()
        places = input_ids.flatten() % self.device.parameters_per_layer
        predicted = torch.zeros(places.shape, device=places.device)
        for index, weight in enumerate(self.layers):
            is_last = index == self.device.num_layers - 1
            predicted = _Layer.apply(predicted, weight, places, self.rank, is_last)
        return predicted.view(input_ids.shape)


class _Layer(torch.autograd.Function):
    """predicted + weight[places], in as long as the device takes."""

    @staticmethod
    def forward(ctx, predicted, weight, places, rank, is_last):
        ctx.save_for_backward(places)
        ctx.rank, ctx.is_last, ctx.size = rank, is_last, len(weight)
        after = predicted + weight[places]
        rank.run_layer(rank.device.forward_ms)
        return after

    @staticmethod
    def backward(ctx, *gradients):
        (gradient,), (places,) = gradients, ctx.saved_tensors
        if ctx.is_last:
            ctx.rank.join()
        of_weight = gradient.new_zeros(ctx.size).index_add_(0, places, gradient)
        ctx.rank.run_layer(2 * ctx.rank.device.forward_ms)
        return gradient, of_weight, None, None, None
