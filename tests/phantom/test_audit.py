"""The observer on cards that are not there: over NCCL, with rows copied to a device, it makes nobody wait."""

import sys
import threading

import pytest

from ddp_audit.asked import parse_request
from ddp_audit.checks import ask_all
from ddp_audit.findings.gradients import exchange
from ddp_audit.findings.rows import rows_of_its_own
from ddp_audit.records import Audit
from ddp_audit.running import launch_script

_SCRIPT = """
import contextlib, os
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)
    def forward(self, input_ids, attention_mask):
        return self.head(torch.nn.functional.dropout(self.embedding(input_ids) * attention_mask[..., None], 0.1))

model = torch.nn.parallel.DistributedDataParallel(Model().cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = TensorDataset(torch.randint(1, 50, (320, 12)))
loader = DataLoader(rows, batch_size=8 // world_size, sampler=DistributedSampler(rows), pin_memory=True)
for number, (batch,) in enumerate(loader):
    step, is_last = number // 2 + 1, number % 2 == 1
    batch = batch.cuda(non_blocking=True)
    # The first four steps and every power of two are looked at closely, and may wait.
    torch.cuda.set_sync_debug_mode("default" if step < 5 or step & (step - 1) == 0 else "error")
    with contextlib.nullcontext() if is_last else model.no_sync():
        logits = model(input_ids=batch, attention_mask=torch.ones_like(batch))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
    if not is_last:
        continue
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.set_sync_debug_mode("default")
torch.cuda.synchronize()
"""


@pytest.mark.slow
def test_between_sampled_steps_the_observer_never_waits_for_a_card(on_phantom, tmp_path):
    on_phantom(num_cards=2)
    (tmp_path / "train.py").write_text(_SCRIPT)
    request = parse_request(
        {"SCRIPT": "train.py", "CELLS": "2", "FOLDER": str(tmp_path), "INTERPRETER": sys.executable, "LAUNCHES": "1"}
    )
    launched = launch_script(request, "2proc", tmp_path / "work", stop=threading.Event())
    assert launched.exit_code == 0, launched.ending
    assert [rank.lines.get("broken") for rank in launched.ranks] == [None, None]
    assert launched.num_steps == 20
    assert launched.ranks[1].steps[0]["device"] == "cuda"
    # Numbers mean nothing on such a card; which rows were fed, what was drawn and exchanged is known on the host.
    audit = Audit(request, {"2proc": [launched]})
    micros = [micro for rank in audit.ranks("2proc") for _, micro in rank.micros()]
    assert {micro["has_drawn"] for micro in micros if micro.get("has_drawn") is not None} == {True}
    gates = {gate.name: gate for gate in ask_all(audit)}
    assert gates[rows_of_its_own.name].outcome == gates[exchange.name].outcome == "passed"
