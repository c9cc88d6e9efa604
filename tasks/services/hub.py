"""What is fetched from the Hugging Face Hub: commits, base models, cards of models and data sets."""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from tasks.process.failure import DataError
from tasks.services import network
from tasks.services.hub_calls import call_hub, has_token, translate_error
from tasks.services.model_files import INDEX, SMALL_FILES, WEIGHTS_FILES
from tasks.store.kept import link_file
from training.process.files import digest_file

_log = logging.getLogger(__name__)
_CONFIG = "config.json"
_MAX_CARD_BYTES = 2**20
_LANGUAGE, _MOST_LANGUAGES = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*"), 20
"""As cards name them: ISO 639-1, 639-2 or 639-3."""


def resolve_commit(repo_id: str, revision: str, *, kind: Literal["model", "dataset"]) -> str:
    """Return the commit (40 hex digits) that the branch, tag or commit `revision` stands for now.

    Offline, the answer is what the local cache last heard. Raises DataError if there is no such repository
    or revision or it is closed to us, ResourceError if the Hub cannot be reached.
    """
    from huggingface_hub import resolve_revision

    def ask() -> str:
        return resolve_revision(repo_id, repo_type=kind, revision=revision).resolved

    with _translate_read_errors(f"{kind} {repo_id}", revision):
        commit = call_hub(ask)
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
        snapshot = Path(call_hub(fetch))
    files = [file for pattern in wanted for file in sorted(snapshot.glob(pattern))]
    for file in files:
        _require_stated_hash(file, f"model {repo_id} at {commit}")
    return files


def _require_stated_hash(file: Path, place: str) -> None:
    """Raise DataError, and keep neither the file nor its link, unless its content has the hash that the Hub states.

    The cache names a file by that hash: sha256 of a large one, git's of the others.
    """
    from huggingface_hub.utils.sha import git_hash

    blob = file.resolve()
    stated = blob.name
    if re.fullmatch(r"[0-9a-f]{64}", stated):
        got = digest_file(blob)
    elif re.fullmatch(r"[0-9a-f]{40}", stated):
        got = git_hash(blob.read_bytes())
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
            card = call_hub(lambda: hf_hub_download(repo_id, "README.md", revision=commit, repo_type=kind))
        is_bomb = Path(card).stat().st_size > _MAX_CARD_BYTES or b"<<" in Path(card).read_bytes()  # merge keys multiply
        found = None if is_bomb else metadata_load(card)
    except Exception as error:  # a stranger's file, read by a library that raises whatever YAML raises
        _log.info("%s %s: its card cannot be read (%s)", kind, repo_id, network.name_error(error))
        return {}
    return found if isinstance(found, dict) else {}


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
        raise translate_error(error, place) from None
