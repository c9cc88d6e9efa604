"""For transformers.Trainer: says what it was asked for, so that an audit can tell whether that was done."""

from typing import Any

from transformers import TrainerCallback

from ddp_audit.observer import say_asked


class AuditCallback(TrainerCallback):
    """Pass it as `Trainer(callbacks=[AuditCallback()])`; without an audit it does nothing."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say how many epochs and steps are asked for, and what is gone on from."""
        say_asked(
            num_train_epochs=int(args.num_train_epochs),
            max_steps=args.max_steps,
            resume_from_checkpoint=args.resume_from_checkpoint or "",
        )
