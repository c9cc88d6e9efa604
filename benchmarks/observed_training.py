"""An ordinary training on one process, whose steps benchmarks/observer.py times with and without the observer."""

import argparse
import json
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

_WARM_UP = 5


def main() -> None:
    """Train; print the seconds and the processor seconds of a step after the warm-up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        arguments.width, 4, 4 * arguments.width, dropout=0.0, batch_first=True, norm_first=True
    )
    model = torch.nn.Sequential(
        torch.nn.Embedding(1000, arguments.width),
        torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        torch.nn.Linear(arguments.width, 1000),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = TensorDataset(torch.randint(1, 1000, (8 * (arguments.steps + _WARM_UP), 64)))
    started = (0.0, 0.0)
    for step, (batch,) in enumerate(DataLoader(rows, batch_size=8, shuffle=True)):
        if step == _WARM_UP:
            started = (time.perf_counter(), time.process_time())
        logits = model(batch)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    print(json.dumps([one / arguments.steps for one in seconds]))


if __name__ == "__main__":
    main()
