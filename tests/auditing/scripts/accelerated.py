"""An accelerate loop with accumulation."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
rows = torch.randint(1, 50, (64, 12), generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(rows), batch_size=4 // accelerator.num_processes, shuffle=True)
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(2):
    for (batch,) in loader:
        with accelerator.accumulate(model):
            logits = model(batch)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 50), batch[:, 1:].reshape(-1))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
accelerator.end_training()
