"""For Lightning: says what a Trainer was asked for, so that an audit can tell whether that was done."""

from typing import Any

try:
    from pytorch_lightning import Callback
except ImportError:
    # Before 2.6.6 the package `lightning` comes without the other one.
    from lightning.pytorch import Callback

from ddp_audit.observer import say_asked


class AuditCallback(Callback):
    """Pass it as `Trainer(callbacks=[AuditCallback()])`; without an audit it does nothing."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Say how many epochs and steps are asked for, and what is gone on from."""
        asked = {"max_epochs": trainer.max_epochs, "max_steps": trainer.max_steps}
        say_asked(
            # -1 and None: no such limit.
            **{name: number for name, number in asked.items() if number is not None and number > 0},
            resume_from_checkpoint=trainer.ckpt_path or "",
        )
