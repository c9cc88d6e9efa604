"""An ordinary training on one process, whose steps benchmarks/observer.py times with and without the observer."""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset


class Training:
    """A transformer of four layers and its rows; it goes through them once, and times each step as scripts do."""

    def __init__(self, *, width, most_steps):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(1000, width),
            torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
            torch.nn.Linear(width, 1000),
        )
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        rows = TensorDataset(torch.randint(1, 1000, (8 * most_steps, 64)))
        self._batches = iter(DataLoader(rows, batch_size=8, shuffle=True))

    def run(self, steps):
        """Return the seconds and the processor seconds of one of so many steps."""
        model, optimizer, timed = self.model, self._optimizer, 0.0
        started = time.perf_counter(), time.process_time()
        for _ in range(steps):
            (batch,) = next(self._batches)
            began = time.perf_counter()
            logits = model(batch)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            timed += time.perf_counter() - began
        seconds, processor = time.perf_counter() - started[0], time.process_time() - started[1]
        return seconds / steps, processor / steps
