"""Where runs are shown and models are published."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from ddp_audit.process.redaction import redact
from tasks.params.choices import list_file_names, require_one_of, require_package
from tasks.params.section import Section
from tasks.params.sources import is_hub_id


def _check_kind(value: Any) -> Any:
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list) or not kinds or not all(isinstance(name, str) for name in kinds):
        raise ValueError("must be the name of a tracker, or a list of such names")
    if len(set(kinds)) < len(kinds) or ("none" in kinds and len(kinds) > 1):
        raise ValueError("must have each tracker once, and none alone")
    return value


class TrackingParams(Section):
    """Where runs are shown."""

    kind: Annotated[str | list[str], BeforeValidator(_check_kind)] = "mlflow"
    """mlflow, wandb, tensorboard or none; or several of them, such as [mlflow, tensorboard]. What the set-up does not
    install, `make extras` does."""
    uri: str | None = None
    """MLflow's tracking server; null: $MLFLOW_TRACKING_URI, else the SQLite file mlflow.db beside params.yaml."""
    experiment: str = "ddp-compare"
    """MLflow experiment, or project of W&B, that the comparison's runs belong to."""

    @property
    def kinds(self) -> list[str]:
        """The files in tasks/services/trackers/ that are meant; empty for none."""
        kinds = [self.kind] if isinstance(self.kind, str) else self.kind
        return [] if kinds == ["none"] else kinds

    @model_validator(mode="after")
    def _check(self) -> Self:
        for tracker in self.kinds:
            require_one_of("kind", tracker, [*list_file_names("tasks/services/trackers"), "none"])
            require_package("kind", tracker, f"tasks/services/trackers/{tracker}.py")
        if self.uri is not None and "mlflow" not in self.kinds:
            raise ValueError("uri: got one without mlflow in tracking.kind; allowed: null, the address is MLflow's")
        if not self.experiment.strip() or not self.experiment.isprintable() or len(self.experiment) > 200:
            raise ValueError(
                f"experiment: got {self.experiment[:80]!r}; allowed: a name of 1 to 200 printable characters, such as "
                "ddp-compare"
            )
        if self.uri is not None and redact(self.uri) != self.uri:
            raise ValueError(
                "uri: holds a password or a query; allowed: an address without, and MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD in the environment"
            )
        return self


def _check_checkpoints(value: Any) -> Any:
    if value in ("last", "all") or (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        return value
    raise ValueError("must be last, all, or a list of file names of checkpoints")


class UploadParams(Section):
    """Publication on the Hugging Face Hub."""

    repo_id: str | None = None
    """OWNER/NAME of the model repository; null: stage the files in reports/hub/ and publish nothing."""
    private: bool = True
    """Whether a repository that has to be created is private; true: nothing is sent to a public one."""
    checkpoints: Annotated[str | list[str], BeforeValidator(_check_checkpoints)] = "last"
    """Which checkpoints go with the final weights: `last`, `all`, or names such as [qwen2_0.5B_0-5000-epoch-1.pt]."""
    cell: str | None = None
    """Name of the cell whose weights are published; null: the last one of params.yaml that has been trained."""
    revisions: Literal["none", "per_epoch"] = "none"
    """per_epoch: the weights after every epoch also stand in a branch of their own, epoch-1, epoch-2 and so on (with
    several ranges 0-5000-epoch-1), each with its card, the gates and the report."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.repo_id is not None and not is_hub_id(self.repo_id):
            raise ValueError(f"repo_id: got {self.repo_id!r}; allowed: OWNER/NAME, at most 96 characters, or null")
        return self
