"""An ordinary training on one process, whose steps benchmarks/observer.py times with and without the observer."""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def train(*, steps: int, width: int, warm_up: int) -> tuple[float, float]:
    """Return the seconds and the processor seconds of one of so many steps after the warm-up."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(1000, width),
        torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        torch.nn.Linear(width, 1000),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = TensorDataset(torch.randint(1, 1000, (8 * (steps + warm_up), 64)))
    started = (0.0, 0.0)
    for step, (batch,) in enumerate(DataLoader(rows, batch_size=8, shuffle=True)):
        if step == warm_up:
            started = (time.perf_counter(), time.process_time())
        logits = model(batch)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds, processor = time.perf_counter() - started[0], time.process_time() - started[1]
    return seconds / steps, processor / steps
