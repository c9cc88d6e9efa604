"""What is sent to the Hugging Face Hub: a finished comparison, one commit at a time, with its card."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.process.failure import ConfigurationError, DataError, ResourceError
from tasks.records.publication import PublicationManifest
from tasks.services import network
from tasks.services.hub_calls import call_hub, translate_error
from training.process.files import digest_file

if TYPE_CHECKING:  # importing the library takes half a second, which most stages need not spend
    from huggingface_hub import HfApi


_log = logging.getLogger(__name__)
MAIN_BRANCH = "main"
RESULTS_PATH = "report/results.json"
"""Where what a comparison found stands in the repository."""


@dataclass(frozen=True)
class Publication:
    """Where a folder stands on the Hub."""

    repo_id: str
    commit: str
    url: str
    """Address of that commit."""
    num_sent: int
    """Files that were not there before; 0: nothing had changed and no commit was made."""


def publish(folder: Path, repo_id: str, *, is_private: bool, message: str, branch: str = MAIN_BRANCH) -> Publication:
    """Make a branch of the model repository hold the files of `folder`, as its manifest.json names them.

    In one commit at most. A branch that is not there begins where `main` stands.
    Only what differs is sent: a second call sends nothing, a call after an interruption what is missing. Files of
    an earlier manifest that are in this one no more are removed; others in the repository are left alone. Ends only
    when the hashes on the Hub equal the manifest's. Raises ConfigurationError if the token may not do this,
    ResourceError ("upload pending") if the Hub cannot be reached.
    """
    from huggingface_hub import HfApi

    digests = read_digests(folder)
    sent: set[str] = set()

    def send() -> Publication:
        api = HfApi()
        name = api.create_repo(repo_id, private=is_private, exist_ok=True).repo_id
        if branch != MAIN_BRANCH:
            api.create_branch(name, branch=branch, exist_ok=True)
        _send_differences(api, name, folder, digests, message=message, branch=branch, sent=sent)
        commit, remote = _list_remote_files(api, name, branch)
        different = list_differences(remote, folder, digests)
        if different:
            raise ResourceError(
                f"upload pending: {len(different)} files of {name} differ from {folder}, first {different[0]}; "
                "something else writes there: run again"
            )
        return Publication(name, commit, f"{api.endpoint}/{name}/tree/{commit}", len(sent))

    with _translate_write_errors(repo_id), network.log_while_running(f"uploading to {repo_id}"):
        return call_hub(send)


def _send_differences(
    api: "HfApi", repo_id: str, folder: Path, digests: dict[str, str], *, message: str, branch: str, sent: set[str]
) -> None:
    """Commit what the branch lacks, all at once, and note it in `sent`.

    Not `upload_folder`: that one splits large folders over several commits, and a reader would see half of one.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    head, remote = _list_remote_files(api, repo_id, branch)
    changed = list_differences(remote, folder, digests)
    removed: list[str] = []
    manifest = PublicationManifest.NAME
    if manifest in changed and manifest in remote:
        earlier = read_paths(Path(api.hf_hub_download(repo_id, manifest, revision=head)))
        removed = sorted(earlier & set(remote) - set(digests))
    if not changed:
        return
    operations: list[Any] = [CommitOperationAdd(path, folder / path) for path in changed]
    operations += [CommitOperationDelete(path) for path in removed]
    _log.info("%s: sending %d of %d files, removing %d", repo_id, len(changed), len(digests), len(removed))
    sent.update(changed)
    api.create_commit(repo_id, operations, commit_message=message, revision=branch, parent_commit=head)


def _list_remote_files(api: "HfApi", repo_id: str, branch: str) -> tuple[str, dict[str, str]]:
    """Return the branch's newest commit and its files: path -> sha256 of large files, git hash (sha1) of the others."""
    from huggingface_hub.hf_api import RepoFile

    head = str(api.repo_info(repo_id, revision=branch).sha)
    entries = api.list_repo_tree(repo_id, recursive=True, revision=head)
    files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return head, {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}


def make_model_card(
    body: str,
    *,
    name: str,
    base_model: str | None,
    dataset: str | None,
    dataset_name: str,
    dataset_split: str | None,
    dataset_revision: str | None,
    license_id: str | None,
    languages: list[str],
    source: str | None,
    metrics: dict[str, float],
    task: str,
    tags: list[str],
) -> str:
    """Return README.md of a model repository: metadata as YAML, where the Hub reads it, then the body.

    `base_model` and `dataset` are Hub ids, None for others; `dataset_name` says in words what `metrics` (name ->
    value) were measured on, `dataset_split` and `dataset_revision` where in its repository that stands; `license_id` is
    the base model's, `languages` the data set's and `task` the model's, as the Hub names them; `source` is the
    repository in which `metrics` can be looked up.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData, constants

    evaluations = [
        EvalResult(
            task,
            dataset or "local",
            dataset_name,
            metric,
            value,
            metric_name=metric,
            dataset_split=dataset_split,
            dataset_revision=dataset_revision,
            source_name=None if source is None else "ddp-compare, results.json",
            source_url=None if source is None else f"{constants.ENDPOINT}/{source}/blob/main/{RESULTS_PATH}",
        )
        for metric, value in metrics.items()
    ]
    metadata = ModelCardData(
        base_model=base_model,
        base_model_relation=None if base_model is None else "finetune",
        metrics=list(metrics) or None,
        license=license_id,
        language=languages or None,
        datasets=None if dataset is None else [dataset],
        library_name=None if task.startswith("image") else "transformers",
        pipeline_tag=task,
        tags=tags,
        model_name=name,
        eval_results=evaluations or None,
    )
    return str(ModelCard(f"---\n{metadata}\n---\n\n{body}"))


@contextlib.contextmanager
def _translate_write_errors(repo_id: str) -> Iterator[None]:
    """Turn what goes wrong while publishing into one line with the remedy."""
    try:
        yield
    except Exception as error:
        status = network.find_status_code(error)
        if status in (401, 403, 404):
            raise ConfigurationError(
                f"upload.repo_id: the Hub refused to write to {repo_id} (HTTP {status}); use a token with write access "
                "to it (https://huggingface.co/settings/tokens) in HF_TOKEN, or another upload.repo_id"
            ) from None
        raise translate_error(error, f"upload pending: {repo_id}") from None


def read_digests(folder: Path) -> dict[str, str]:
    """Return path -> sha256 of every file that the manifest names, and of the manifest itself."""
    digests = {path: file.sha256 for path, file in PublicationManifest.read(folder).files.items()}
    return {**digests, PublicationManifest.NAME: digest_file(PublicationManifest.path_in(folder))}


def read_paths(file: Path) -> set[str]:
    """Return the paths that a published manifest names; none if the file is no manifest of ours."""
    try:
        return set(PublicationManifest.read(file).files)
    except DataError:
        return set()


def list_differences(remote: dict[str, str], folder: Path, digests: dict[str, str]) -> list[str]:
    """Return the paths that the repository lacks or holds with other content than `digests` says.

    `remote`: path -> sha256 (64 hex digits) or git's hash (40), as the Hub has one or the other.
    """
    from huggingface_hub.utils.sha import git_hash

    return [
        path
        for path, sha256 in sorted(digests.items())
        if path not in remote
        or remote[path] != (sha256 if len(remote[path]) == 64 else git_hash((folder / path).read_bytes()))
    ]
