"""What is sent to the Hugging Face Hub: a finished comparison, one commit at a time, with its card."""

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.process.failure import ConfigurationError, DataError, ResourceError
from tasks.records.run import PublicationManifest
from tasks.services.hub_calls import call_hub, find_status_code, log_while_running, quote_answer, translate_error
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
    when the hashes on the Hub equal the manifest's. Raises ConfigurationError if the token may not do this, or
    a repository that is to be private is public, ResourceError ("upload pending") if the Hub cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    manifest, sent = PublicationManifest.NAME, set[str]()
    digests = {path: file.sha256 for path, file in PublicationManifest.read(folder).files.items()}
    digests[manifest] = digest_file(folder / manifest)

    def send() -> Publication:
        api = HfApi()
        name = api.create_repo(repo_id, private=is_private, exist_ok=True).repo_id
        # One that was there is left as it is.
        if is_private and api.repo_info(name).private is False:
            raise ConfigurationError(
                f"upload.private: true, but {name} is public; nothing was sent: make it private on its page, or set "
                "upload.private: false"
            )
        if branch != MAIN_BRANCH:
            api.create_branch(name, branch=branch, exist_ok=True)
        head, remote = _list_remote_files(api, name, branch)
        if changed := list_differences(remote, folder, digests):
            operations: list[Any] = [CommitOperationAdd(path, folder / path) for path in changed]
            if manifest in changed and manifest in remote:
                with contextlib.suppress(DataError):  # it is no manifest of ours
                    earlier = PublicationManifest.read(Path(api.hf_hub_download(name, manifest, revision=head)))
                    removed = sorted(set(earlier.files) & set(remote) - set(digests))
                    operations += [CommitOperationDelete(path) for path in removed]
            _log.info("%s: sending %d of %d files, %d changes", name, len(changed), len(digests), len(operations))
            sent.update(changed)
            # Not `upload_folder`: that splits large folders over several commits, and a reader would see half of one.
            api.create_commit(name, operations, commit_message=message, revision=branch, parent_commit=head)
            head, remote = _list_remote_files(api, name, branch)
            if different := list_differences(remote, folder, digests):
                raise ResourceError(
                    f"upload pending: {len(different)} files of {name} differ from {folder}, first {different[0]}; "
                    "something else writes there: run again"
                )
        return Publication(name, head, f"{api.endpoint}/{name}/tree/{head}", len(sent))

    try:
        with log_while_running(f"uploading to {repo_id}"):
            return call_hub(send)
    except Exception as error:
        status = find_status_code(error)
        if status in (401, 403, 404):
            raise ConfigurationError(
                f"upload.repo_id: the Hub refused to write to {repo_id} ({quote_answer(error)}); see to that, or use a "
                "token with write access to it (https://huggingface.co/settings/tokens) in HF_TOKEN, or another "
                "upload.repo_id"
            ) from None
        raise translate_error(error, f"upload pending: {repo_id}") from None


def _list_remote_files(api: "HfApi", repo_id: str, branch: str) -> tuple[str, dict[str, str]]:
    """Return the branch's newest commit and its files: path -> sha256 of large files, git hash (sha1) of the others."""
    from huggingface_hub.hf_api import RepoFile

    head = str(api.repo_info(repo_id, revision=branch).sha)
    entries = api.list_repo_tree(repo_id, recursive=True, revision=head)
    files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return head, {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}


def make_model_card(
    body: str, *, task: str, metrics: dict[str, float], evaluated_on: dict[str, Any], source: str | None, **facts: Any
) -> str:
    """Return README.md of a model repository: metadata as YAML, where the Hub reads it, then the body.

    `metrics` (name -> value) were measured on what `evaluated_on` says as EvalResult does, and can be looked up in the
    repository `source`; `task` and `facts` are named as the Hub names them.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData, constants

    where: dict[str, Any] = {}
    if source is not None:
        where["source_name"] = "ddp-compare, results.json"
        where["source_url"] = f"{constants.ENDPOINT}/{source}/blob/main/{RESULTS_PATH}"
    evaluations = [
        EvalResult(task, metric_type=metric, metric_value=value, metric_name=metric, **evaluated_on, **where)
        for metric, value in metrics.items()
    ]
    metadata = ModelCardData(
        metrics=list(metrics) or None,
        library_name=None if task.startswith("image") else "transformers",
        pipeline_tag=task,
        eval_results=evaluations or None,
        **facts,
    )
    return str(ModelCard(f"---\n{metadata}\n---\n\n{body}"))


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
