"""What is fetched from the Hugging Face Hub: commits, base models, cards of models and data sets."""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tasks.process.failure import DataError
from tasks.services.hub_calls import (
    call_hub,
    find_status_code,
    has_token,
    log_while_running,
    name_error,
    translate_error,
)
from tasks.store.kept import link_file
from training.process.files import digest_file, write_json

_log = logging.getLogger(__name__)

REVISIONS = Path(".work/download/revisions.json")
_COMMIT = re.compile(r"[0-9a-f]{40}")
INDEX = "model.safetensors.index.json"
SMALL_FILES = (
    "config.json", "generation_config.json", INDEX, "tokenizer.json",
    "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
WEIGHTS_FILES = ("model.safetensors", "model-*.safetensors")
"""As patterns: large weights come in several files, which the index names."""
_MAX_CARD_BYTES = 2**20
_LANGUAGE, _MOST_LANGUAGES = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*"), 20
"""As cards name them: ISO 639-1, 639-2 or 639-3."""


def resolve_commit(repo_id: str, revision: str, *, kind: Literal["model", "dataset"]) -> str:
    """Return the commit (40 hex digits) that the branch, tag or commit `revision` stands for now.

    Offline, the answer is what the local cache last heard. Raises DataError if there is no such repository
    or revision or it is closed to us, ResourceError if the Hub cannot be reached.
    """
    from huggingface_hub import resolve_revision

    with _translate_read_errors(f"{kind} {repo_id}", revision):
        commit = call_hub(lambda: resolve_revision(repo_id, repo_type=kind, revision=revision).resolved)
    if commit != revision:
        _log.info("%s %s: revision %s is commit %s", kind, repo_id, revision, commit)
    return commit


def pin_commit(repo_id: str, revision: str, *, kind: Literal["model", "dataset"]) -> str:
    """Return the commit (40 hex digits) that the revision stood for when first asked, so that re-runs agree.

    A commit is its own answer. To ask the Hub anew takes more than to delete .work/download/revisions.json: DVC has to
    run the stage again (`dvc repro -f -s download`). Raises as `resolve_commit`.
    """
    if _COMMIT.fullmatch(revision):
        return revision
    key = f"{kind}:{repo_id}@{revision}"
    try:
        known = json.loads(REVISIONS.read_text(encoding="utf-8")) if REVISIONS.is_file() else {}
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(_COMMIT.fullmatch(str(value)) for value in known.values()):
        raise DataError(f"{REVISIONS}: not a mapping of revisions to commits; delete it to ask the Hub anew")
    if key in known:
        remedy = f"to ask the Hub anew: rm {REVISIONS}; dvc repro -f -s download"
        _log.info("%s: stays at commit %s (%s)", key, known[key], remedy)
    else:
        known[key] = resolve_commit(repo_id, revision, kind=kind)
        write_json(REVISIONS, known)
    return str(known[key])


def download_model(repo_id: str, commit: str, folder: Path, *, has_weights: bool = True) -> None:
    """Fill `folder` with the model's config, safetensors weights (unless told otherwise) and tokenizer, as real files.

    Weights are hard links into the Hugging Face cache where the file system allows it, the rest are copies.
    Raises as `resolve_commit`.
    """
    wanted = [*SMALL_FILES, *WEIGHTS_FILES] if has_weights else [name for name in SMALL_FILES if name != INDEX]
    download_files(repo_id, commit, folder, wanted)


def download_files(repo_id: str, commit: str, folder: Path, wanted: list[str]) -> None:
    """Fill `folder` with those of the model's files of these names that there are, as the Hub states them."""
    from huggingface_hub import snapshot_download

    with _translate_read_errors(f"model {repo_id}", commit), log_while_running(f"downloading model {repo_id}"):
        # Folders of a repository ("*/*") hold other formats of the same model.
        only: dict[str, Any] = {"allow_patterns": wanted, "ignore_patterns": ["*/*"]}
        snapshot = Path(call_hub(lambda: snapshot_download(repo_id, revision=commit, **only)))
    files = {file.name: file for pattern in wanted for file in sorted(snapshot.glob(pattern))}
    for file in files.values():
        _require_stated_hash(file, f"model {repo_id} at {commit}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        # A later stage may rewrite a small file, and the cache must not change with it.
        place = link_file if name.endswith(".safetensors") else shutil.copyfile
        place(file.resolve(), folder / name)
    _log.info("model %s at %s: %d files in %s", repo_id, commit, len(files), folder)


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


def read_card(repo_id: str, commit: str, *, kind: Literal["model", "dataset"]) -> tuple[str | None, list[str]]:
    """Return licence and languages that the repository's card names, such as apache-2.0 and en; None and [] if none."""
    from huggingface_hub import hf_hub_download, metadata_load

    try:
        with _translate_read_errors(f"{kind} {repo_id}", commit):
            card = call_hub(lambda: hf_hub_download(repo_id, "README.md", revision=commit, repo_type=kind))
        is_bomb = Path(card).stat().st_size > _MAX_CARD_BYTES or b"<<" in Path(card).read_bytes()  # merge keys multiply
        result = None if is_bomb else metadata_load(card)
    except Exception as error:  # a stranger's file, read by a library that raises whatever YAML raises
        _log.info("%s %s: its card cannot be read (%s)", kind, repo_id, name_error(error))
        result = None
    said = result if isinstance(result, dict) else {}
    license_id, named = said.get("license"), said.get("language")
    is_plain = isinstance(license_id, str) and license_id.isprintable() and len(license_id) <= 64
    languages = [
        item
        for item in (named if isinstance(named, list) else [named])
        if isinstance(item, str) and _LANGUAGE.fullmatch(item)
    ]
    return license_id if is_plain else None, languages[:_MOST_LANGUAGES]


@contextlib.contextmanager
def _translate_read_errors(what: str, revision: str) -> Iterator[None]:
    """Turn what goes wrong while reading into one line that names `what`, the revision and the remedy."""
    from huggingface_hub import errors

    place, token = f"{what} at {revision}", "a token is set" if has_token() else "no token is set"
    try:
        yield
    except Exception as error:
        for kinds, words in (
            ((errors.GatedRepoError,), f"access is gated; accept its terms on its page, then set HF_TOKEN ({token})"),
            ((errors.RevisionNotFoundError,), "no such revision; allowed: a branch, tag or commit of it"),
            (
                (errors.RepositoryNotFoundError, errors.RemoteEntryNotFoundError),
                f"not found on the Hub, or private; check the spelling, or set HF_TOKEN ({token})",
            ),
            ((errors.HFValidationError,), "no Hub id; allowed: OWNER/NAME, at most 96 characters"),
        ):
            if isinstance(error, kinds):
                raise DataError(f"{place}: {words}") from None
        if find_status_code(error) in (401, 403):
            raise DataError(
                f"{place}: access refused ({name_error(error)}); set HF_TOKEN to a valid token ({token})"
            ) from None
        raise translate_error(error, place) from None
