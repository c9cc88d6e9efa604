"""The Hugging Face Hub: base models in, published comparisons out; the only import of huggingface_hub.

Waiting is bounded: every request has a time limit and every call a few tries. Failures end in one line
that holds neither a token nor a signed address.
"""

import contextlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tasks.process.failure import ConfigurationError, DataError, ResourceError, StageError
from tasks.records.publication import PublicationManifest
from tasks.services import network
from tasks.services.manifest import compute_git_hash, list_differences, read_digests, read_paths
from tasks.services.model_files import INDEX, SMALL_FILES, WEIGHTS_FILES
from tasks.store.links import link_file
from training.process.files import digest_file

if TYPE_CHECKING:  # importing the library takes half a second, which most stages need not spend
    from huggingface_hub import HfApi

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_CONFIG = "config.json"
_MAX_CARD_BYTES = 2**20
_LANGUAGE, _MOST_LANGUAGES = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*"), 20
"""As cards name them: ISO 639-1, 639-2 or 639-3."""
MAIN_BRANCH = "main"
RESULTS_PATH = "report/results.json"
"""Where what a comparison found stands in the repository."""
_patience = network.Patience()


def resolve_commit(repo_id: str, revision: str, *, kind: Literal["model", "dataset"]) -> str:
    """Return the commit (40 hex digits) that the branch, tag or commit `revision` stands for now.

    Offline, the answer is what the local cache last heard. Raises DataError if there is no such repository
    or revision or it is closed to us, ResourceError if the Hub cannot be reached.
    """
    from huggingface_hub import resolve_revision

    def ask() -> str:
        return resolve_revision(repo_id, repo_type=kind, revision=revision).resolved

    with _translate_read_errors(f"{kind} {repo_id}", revision):
        commit = _call(ask)
    if commit != revision:
        _log.info("%s %s: revision %s is commit %s", kind, repo_id, revision, commit)
    return commit


def download_model(repo_id: str, commit: str, folder: Path, *, has_weights: bool = True) -> None:
    """Fill `folder` with the model's config, safetensors weights (unless told otherwise) and tokenizer, as real files.

    Weights are hard links into the Hugging Face cache where the file system allows it, the rest are copies.
    Raises as `resolve_commit`; also DataError if the repository has no config or no safetensors weights.
    """
    wanted = (*SMALL_FILES, *WEIGHTS_FILES) if has_weights else tuple(name for name in SMALL_FILES if name != INDEX)
    files = _fetch_files(repo_id, commit, wanted)
    names = {file.name for file in files}
    if _CONFIG not in names:
        raise DataError(f"model {repo_id} at {commit}: has no {_CONFIG}; choose a transformers model")
    if has_weights and not any(name.endswith(".safetensors") for name in names):
        raise DataError(
            f"model {repo_id} at {commit}: has no model.safetensors, and pickled weights are refused; choose a "
            "model with safetensors, or convert it (https://huggingface.co/spaces/safetensors/convert)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        # A later stage may rewrite a small file, and the cache must not change with it.
        place = link_file if file.suffix == ".safetensors" else shutil.copyfile
        place(file.resolve(), folder / file.name)
    _log.info("model %s at %s: %d files in %s", repo_id, commit, len(files), folder)


def download_config(repo_id: str, commit: str, folder: Path) -> None:
    """Fill `folder` with the model's config.json alone. Raises as `download_model`."""
    files = _fetch_files(repo_id, commit, [_CONFIG])
    if not files:
        raise DataError(f"model {repo_id} at {commit}: has no {_CONFIG}; choose a transformers model")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(files[0].resolve(), folder / _CONFIG)


def _fetch_files(repo_id: str, commit: str, wanted: Sequence[str]) -> list[Path]:
    """Return those files of a model's repository that have these names, in the local cache, as the Hub states them."""
    from huggingface_hub import snapshot_download

    def fetch() -> str:
        # Folders of a repository ("*/*") hold other formats of the same model.
        return snapshot_download(repo_id, revision=commit, allow_patterns=list(wanted), ignore_patterns=["*/*"])

    with _translate_read_errors(f"model {repo_id}", commit), network.log_while_running(f"downloading model {repo_id}"):
        snapshot = Path(_call(fetch))
    files = [file for pattern in wanted for file in sorted(snapshot.glob(pattern))]
    for file in files:
        _require_stated_hash(file, f"model {repo_id} at {commit}")
    return files


def _require_stated_hash(file: Path, place: str) -> None:
    """Raise DataError, and keep neither the file nor its link, unless its content has the hash that the Hub states.

    The cache names a file by that hash: sha256 of a large one, git's of the others.
    """
    blob = file.resolve()
    stated = blob.name
    if re.fullmatch(r"[0-9a-f]{64}", stated):
        got = digest_file(blob)
    elif re.fullmatch(r"[0-9a-f]{40}", stated):
        got = compute_git_hash(blob)
    else:
        _log.warning("%s: %s: the Hub states no hash of it; it is taken as it arrived", place, file.name)
        return
    if got != stated:
        blob.unlink()
        file.unlink(missing_ok=True)
        raise DataError(
            f"{place}: {file.name} is not what the Hub states (its hash is {stated[:16]}..., that of what arrived "
            f"{got[:16]}...); it is deleted: run again"
        )


def find_license(repo_id: str, commit: str, *, kind: Literal["model", "dataset"]) -> str | None:
    """Return the licence that the repository's card names, such as apache-2.0; None if it cannot be told."""
    found = _read_card(repo_id, commit, kind).get("license")
    return found if isinstance(found, str) and found.isprintable() and len(found) <= 64 else None


def find_languages(repo_id: str, commit: str, *, kind: Literal["model", "dataset"]) -> list[str]:
    """Return the languages that the repository's card names, such as en; none if it cannot be told."""
    found = _read_card(repo_id, commit, kind).get("language")
    named = found if isinstance(found, list) else [found]
    return [one for one in named if isinstance(one, str) and _LANGUAGE.fullmatch(one)][:_MOST_LANGUAGES]


def _read_card(repo_id: str, commit: str, kind: Literal["model", "dataset"]) -> dict[str, Any]:
    """Return the metadata of a repository's card; {} if there is none that can be read."""
    from huggingface_hub import hf_hub_download, metadata_load

    try:
        with _translate_read_errors(f"{kind} {repo_id}", commit):
            card = _call(lambda: hf_hub_download(repo_id, "README.md", revision=commit, repo_type=kind))
        is_bomb = Path(card).stat().st_size > _MAX_CARD_BYTES or b"<<" in Path(card).read_bytes()  # merge keys multiply
        found = None if is_bomb else metadata_load(card)
    except Exception as error:  # a stranger's file, read by a library that raises whatever YAML raises
        _log.info("%s %s: its card cannot be read (%s)", kind, repo_id, network.name_error(error))
        return {}
    return found if isinstance(found, dict) else {}


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
        return _call(send)


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


def has_token() -> bool:
    """Return True if HF_TOKEN or the token file of `hf auth login` holds a token."""
    from huggingface_hub import get_token

    return bool(get_token())


@contextlib.contextmanager
def _translate_read_errors(what: str, revision: str) -> Iterator[None]:
    """Turn what goes wrong while reading into one line that names `what`, the revision and the remedy."""
    from huggingface_hub import errors

    place = f"{what} at {revision}"
    token = "a token is set" if has_token() else "no token is set"
    try:
        yield
    except errors.GatedRepoError:
        raise DataError(
            f"{place}: access is gated; accept its terms on its page, then set HF_TOKEN ({token})"
        ) from None
    except errors.RevisionNotFoundError:
        raise DataError(f"{place}: no such revision; allowed: a branch, tag or commit of it") from None
    except (errors.RepositoryNotFoundError, errors.RemoteEntryNotFoundError):
        raise DataError(
            f"{place}: not found on the Hub, or private; check the spelling, or set HF_TOKEN ({token})"
        ) from None
    except errors.HFValidationError:
        raise DataError(f"{place}: no Hub id; allowed: OWNER/NAME, at most 96 characters") from None
    except Exception as error:
        if network.find_status_code(error) in (401, 403):
            raise DataError(
                f"{place}: access refused ({network.name_error(error)}); set HF_TOKEN to a valid token ({token})"
            ) from None
        raise _translate_error(error, place) from None


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
        raise _translate_error(error, f"upload pending: {repo_id}") from None


def _translate_error(error: Exception, place: str) -> Exception:
    """Return the one-line failure for what the Hub or the network did, or `error` itself if it is neither."""
    from huggingface_hub.errors import FileMetadataError, OfflineModeIsEnabled

    if isinstance(error, StageError):
        return error
    if any(isinstance(cause, OfflineModeIsEnabled) for cause in network.walk_causes(error)):
        return ResourceError(f"{place}: HF_HUB_OFFLINE is set, and the local cache is not enough; unset it")
    if network.is_transient(error):
        tries = len(network.WAITS_SECONDS) + 1
        return ResourceError(
            f"{place}: the Hub could not be reached ({network.name_error(error)}, {tries} tries); check the network "
            "and run again: what has arrived is kept"
        )
    if any(isinstance(cause, json.JSONDecodeError | FileMetadataError) for cause in network.walk_causes(error)):
        return ResourceError(
            f"{place}: what answers is not the Hub ({network.name_error(error)}); check network and proxy"
        )
    if network.find_status_code(error) is not None:
        return ResourceError(f"{place}: the Hub answered {network.name_error(error)}; run again later")
    return error


def bound_requests() -> None:
    """From now on, no request of this process to the Hub waits without end, whoever makes it."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks
    for event, hook in (("request", network.set_time_limits), ("response", _patience.look)):
        if hook not in hooks[event]:
            hooks[event].append(hook)


def _call(call: Callable[[], _Result]) -> _Result:
    """Return what `call` returns, with a few tries, each request with a time limit, and quietly.

    The library's own warnings print addresses with signatures; ours say the same without.
    """
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils import logging as hub_logging

    def call_once() -> _Result:
        bound_requests()
        return call()

    # Xet, the Hub's storage, tries for six minutes by itself.
    os.environ.setdefault("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "2")
    hub_logging.set_verbosity_error()
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    if not sys.stderr.isatty():
        disable_progress_bars()
    return network.call_with_retries(call_once, give_up_on=OfflineModeIsEnabled)
