"""What a script may say itself: heard in an audit, nothing without one."""

from ddp_audit import say_asked, step
from ddp_audit.observer.trainer import AuditCallback


def test_without_an_audit_nothing_happens() -> None:
    with step(ids=[1, 2], num_tokens=3):
        say_asked(epochs=3)
    assert AuditCallback().on_train_begin.__doc__
