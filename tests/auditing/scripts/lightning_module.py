"""Lightning, with accumulation and clipping; it goes forward inside of the optimizer's step."""

import os

import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from ddp_audit import say_asked


class Language(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))

    def forward(self, rows):
        return self.net(rows)

    def training_step(self, batch, _index):
        (rows,) = batch
        logits = self(rows)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 50), rows[:, 1:].reshape(-1))
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


say_asked(max_epochs=2)
lightning.seed_everything(0)
size = int(os.environ["WORLD_SIZE"])
rows = TensorDataset(torch.randint(1, 50, (64, 12), generator=torch.Generator().manual_seed(1)))
lightning.Trainer(
    accelerator="cpu",
    devices=size,
    max_epochs=2,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Language(), DataLoader(rows, batch_size=4 // size, shuffle=True))
