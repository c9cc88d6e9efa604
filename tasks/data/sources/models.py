"""Base models as transformers folders: config, safetensors weights and tokenizer, checked and kept once."""

import contextlib
import importlib.metadata
import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tasks.data.builtin import corpus, random_weights, tiny_classifier, tiny_model
from tasks.data.builtin.random_weights import draw_weights
from tasks.data.sources.finite_weights import refuse_not_finite
from tasks.data.sources.heads import give_head
from tasks.data.sources.row_store import MAX_CLASSES, store_rows
from tasks.machine.host_facts import read_free_memory_bytes
from tasks.params.sources import BUILTIN_CLASSIFIERS, DatasetParams, ModelParams
from tasks.process.bounded_child import BoundedChild, is_panic
from tasks.process.failure import DataError, StageError
from tasks.records.sources import BaseModelManifest
from tasks.services import hub
from tasks.services.model_files import INDEX, SMALL_FILES, WEIGHTS_FILES
from tasks.store.kept import fill_folder, is_kept
from training.process.files import digest_file, digest_json

_log = logging.getLogger(__name__)

STORE = Path(".work/download/models")
_MAX_SMALL_BYTES = {"config.json": 10 * 2**20, "tokenizer.json": 64 * 2**20}
_MAX_OTHER_BYTES = 32 * 2**20
"""Of a file that is no weights; the largest tokenizers have half as much."""
_MAX_HEADER_BYTES = 16 * 2**20
"""Of a safetensors file: about 150,000 tensors."""
_BUILT_ONE_BY_ONE = re.compile(r"(num|n)_(.*_)?(layer|expert|block)s?")
_MOST_LAYERS = 1_000
"""Of each kind, and experts, in a config.json without weights that say how many there may be."""
_BYTES_PER_PARAMETER = 4
_QUANTISED = ("quantization_config", "compression_config")
_FEWEST_TOKENS = 2
"""Of a vocabulary, beside special ones."""
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")


def store_model(
    model: ModelParams,
    *,
    commit: str | None = None,
    class_names: Sequence[str] = (),
    child: BoundedChild | None = None,
) -> Path:
    """Return a folder with the model's files and its manifest.json; made only if it is not stored whole yet.

    With `class_names` it is a model that tells these classes apart: its head, if it is new, is made here, once.
    Raises DataError if the model has no safetensors weights, an unknown architecture, or a tokenizer that does not
    fit its embedding. `child`: the process that reads it.
    """
    if child is None:
        with BoundedChild() as child:
            return store_model(model, commit=commit, class_names=class_names, child=child)
    identity = _make_identity(model, commit)
    if class_names:
        identity["class_names"] = list(class_names)
    folder = STORE / digest_json(identity)[:32]
    if is_kept(folder):
        _log.info("%s: reused the model in %s", model.source, folder)
        return folder
    with fill_folder(folder) as new:
        texts = _fetch(new, model, commit, identity)
        facts = child.run(
            _make,
            new,
            model,
            class_names,
            texts,
            what=f"model.source {model.source}",
            num_bytes=count_bytes(new, model),
        )
        files = {file.name: digest_file(file) for file in sorted(new.iterdir())}
        manifest = BaseModelManifest(
            source=model.source,
            kind=model.kind,
            revision=model.revision,
            commit=commit,
            license=None if commit is None else hub.find_license(model.location, commit, kind="model"),
            label=_make_label(model, facts),
            **facts,
            is_random_weights=model.kind == "builtin" or model.weights == "random",
            digest=digest_json(files),
            files=files,
        )
        manifest.write(new)
    _log.info("%s: %s, stored in %s", model.source, manifest.label, folder)
    return folder


def count_bytes(folder: Path, model: ModelParams) -> int:
    """Return the memory that a model may take beside config and tokenizer: its weights and their gradient in fp32."""
    if model.weights == "random":
        return read_free_memory_bytes()[0]
    return 6 * sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def fetch_config(model: ModelParams, folder: Path, *, commit: str | None, is_classifier: bool | None) -> None:
    """Fill `folder` with the config.json of a model, and with nothing else of it; raises as store_model.

    `is_classifier`: whether it tells classes of texts apart; None for a model of images.
    """
    if model.kind == "hub":
        assert commit is not None
        hub.download_config(model.location, commit, folder)
    else:
        file = Path(model.location) / "config.json"
        _check_files([file, *file.parent.glob("*.safetensors")], model.source)
        folder.mkdir(parents=True)
        shutil.copyfile(file, folder / file.name)
    with BoundedChild() as child:
        child.run(_read_outline, folder, model.source, is_classifier, what=f"model.source {model.source}")


def _read_outline(folder: Path, source: str, is_classifier: bool | None) -> None:
    """Read the model that config.json describes: no weights say how large it may be."""
    _read_config(folder, source, most_layers=_MOST_LAYERS)
    if is_classifier is not None:
        _build_outline(folder, source, most_layers=_MOST_LAYERS, is_classifier=is_classifier)


def _make(folder: Path, model: ModelParams, class_names: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Make what was fetched the base model; return what its manifest says of it."""
    if model.kind == "builtin" and model.location in BUILTIN_CLASSIFIERS:
        tiny_classifier.write_tiny_modernbert(folder, texts, class_names)
    elif model.kind == "builtin":
        tiny_model.write_tiny_qwen2(folder, texts)
    elif model.weights == "random":
        from transformers import AutoModelForCausalLM

        outline = _build_outline(folder, model.source, most_layers=_MOST_LAYERS, is_classifier=False)
        needed = outline.num_parameters() * _BYTES_PER_PARAMETER
        with translate_errors(f"model.source {model.source}: config.json"):
            if needed > (free := read_free_memory_bytes()[0]):
                raise ValueError(f"its weights take {needed:,} bytes of memory; allowed: {free:,}")
            draw_weights(folder, partial(AutoModelForCausalLM.from_config, outline.config, trust_remote_code=False))
    facts = _read_facts(folder, model.source, is_classifier=bool(class_names))
    if class_names and model.kind != "builtin":
        with translate_errors(f"model.source {model.source}: as a classifier of {len(class_names)} classes"):
            facts["num_parameters"] = give_head(folder, class_names)
    return facts


def _make_identity(model: ModelParams, commit: str | None) -> dict[str, Any]:
    if model.kind == "builtin":
        files = sorted(Path(tiny_model.__file__).parent.glob("*.py"))
        return {
            "source": model.source,
            "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
            "packages": corpus.read_package_versions(),
            "code": {file.name: digest_file(file) for file in files},
        }
    drawn: dict[str, Any] = {}
    if model.weights == "random":
        drawn = {
            "weights": model.weights,
            "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
            "code": digest_file(Path(random_weights.__file__)),
        }
    if model.kind == "hub":
        return {"source": model.source, "revision": model.revision, "commit": commit, **drawn}
    files = _select_files(Path(model.location), model.source, has_weights=not drawn)
    return {"source": model.source, "files": {file.name: digest_file(file) for file in files}, **drawn}


def _fetch(folder: Path, model: ModelParams, commit: str | None, identity: dict[str, Any]) -> list[str]:
    """Fill the folder with the files of the source, unread; return the texts that a built-in model is made from."""
    if model.kind == "builtin":
        corpus_params = DatasetParams(source="builtin:docstrings")
        rows = next(store_rows(corpus_params, tiny_model.NUM_TOKENIZER_ROWS).batches(tiny_model.NUM_TOKENIZER_ROWS))
        return [row.text for row in rows]
    if model.kind == "hub":
        assert commit is not None
        hub.download_model(model.location, commit, folder, has_weights=model.weights == "pretrained")
    else:
        # Copies, not links: DVC makes its outputs read-only, and the user's own files must stay as they are.
        for file in _select_files(Path(model.location), model.source, has_weights=model.weights == "pretrained"):
            shutil.copyfile(file, folder / file.name)
        # The store is named after what the source held.
        if {file.name: digest_file(file) for file in folder.iterdir()} != identity["files"]:
            raise DataError(f"model.source {model.source}: changed while it was read; run again")
    return []


def _build_outline(folder: Path, source: str, *, most_layers: int, is_classifier: bool) -> Any:
    """Return the model that config.json describes, of shapes alone. Raises DataError if it is none for texts."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if is_classifier else AutoModelForCausalLM
    _read_config(folder, source, most_layers=most_layers)
    with translate_errors(f"model.source {source}: config.json"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if config.get_text_config(decoder=True) is not config:
            others = ", ".join(name for name in config.sub_configs if name != "text_config")
            raise ValueError(f"describes a model of more than texts ({others}); allowed: one of texts alone")
        with torch.device("meta"):
            return kind.from_config(config, trust_remote_code=False)


def _read_config(folder: Path, source: str, *, most_layers: int) -> None:
    """Raise DataError for a config.json that no library should be given."""
    _check_files([folder / "config.json"], source)
    with translate_errors(f"model.source {source}: config.json"):
        written = json.loads((folder / "config.json").read_bytes())
        if not isinstance(written, dict):
            raise ValueError(f"holds a {type(written).__name__}; allowed: a mapping")
        for name in _QUANTISED:
            if written.get(name):
                how = written[name].get("quant_method", "") if isinstance(written[name], dict) else ""
                raise ValueError(
                    f"{name} {how}: quantised weights cannot be trained whole; allowed: the model that they were made "
                    "of, and train.adapter.base: nf4 to hold that in four bits"
                )
        if (file := written.get("transformers_weights")) is not None:
            raise ValueError(f"transformers_weights names {str(file)[:80]!r}; allowed: null, and model.safetensors")
        if isinstance(labels := written.get("num_labels"), int) and labels > MAX_CLASSES:
            raise ValueError(f"num_labels is {labels:,}; allowed: {MAX_CLASSES:,}")
        _refuse_phantom_layers(written, most_layers)


def _select_files(folder: Path, source: str, *, has_weights: bool = True) -> list[Path]:
    """Return the files of a local model folder that are data: never pickles (.bin, .pt), never code (.py).

    Without `has_weights` those that are no weights.
    """
    if not has_weights:
        small = [file for name in SMALL_FILES if name != INDEX and (file := folder / name).exists()]
        if folder / "config.json" not in small:
            raise DataError(
                f"model.source {source}: config.json is missing; allowed: the folder of a transformers model"
            )
        _check_files(small, source)
        return small
    weights = [file for pattern in WEIGHTS_FILES for file in sorted(folder.glob(pattern))]
    if not weights:
        pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl") for file in folder.glob(pattern))
        found = f"only {pickles[0]}, and pickled weights are refused" if pickles else "none"
        remedy = f", or once: python -m tasks.data.sources.converted {folder} {folder}-safe" if pickles else ""
        raise DataError(
            f"model.source {source}: needs model.safetensors, or model-*.safetensors with an index; found {found}; "
            f"save the model with save_pretrained(){remedy}"
        )
    small = [file for name in SMALL_FILES if (file := folder / name).exists()]
    _check_files([*small, *weights], source)
    return small + weights


def _check_files(files: Iterable[Path], source: str) -> None:
    """Raise DataError for what is no file, or far larger than its kind: reading it would not end or take all memory."""
    for file in files:
        if not file.is_file():
            raise DataError(f"model.source {source}: {file.name}: is no file with content; allowed: plain files")
        size, allowed = file.stat().st_size, _MAX_SMALL_BYTES.get(file.name, _MAX_OTHER_BYTES)
        if size > allowed and file.suffix != ".safetensors":
            raise DataError(
                f"model.source {source}: {file.name}: cannot be used ({size:,} bytes; allowed: {allowed:,})"
            )


def _read_facts(folder: Path, source: str, *, is_classifier: bool) -> dict[str, Any]:
    """Return `num_parameters` and `model_type`, having read the config, every weights header and the tokenizer."""
    from transformers import AutoTokenizer

    place = f"model.source {source}"
    _check_files((file for name in SMALL_FILES if (file := folder / name).exists()), source)
    num_tensors = _check_weights(folder, place)
    network = _build_outline(folder, source, most_layers=num_tensors, is_classifier=is_classifier)
    refuse_not_finite(folder, place, parameters={name for name, _ in network.named_parameters()})
    with translate_errors(f"{place}: tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        vocabulary = tokenizer.get_vocab()
    # Where its files are missing, transformers makes one of special tokens alone.
    if len(set(vocabulary).difference(tokenizer.all_special_tokens)) < _FEWEST_TOKENS:
        raise DataError(
            f"{place}: the tokenizer has no vocabulary, as where its files are missing; save the model's own beside it "
            "(tokenizer.save_pretrained)"
        )
    num_embeddings = network.get_input_embeddings().num_embeddings
    token, token_id = max(vocabulary.items(), key=lambda item: item[1])
    if token_id >= num_embeddings:
        raise DataError(
            f"{place}: the tokenizer's token {token!r} has id {token_id}, and the model's embedding has "
            f"{num_embeddings} rows; use the tokenizer that belongs to the model"
        )
    if tokenizer.eos_token_id is None and not (is_classifier and tokenizer.sep_token_id is not None):
        raise DataError(f"{place}: the tokenizer names no eos_token, which ends every row; set it")
    return {"num_parameters": network.num_parameters(), "model_type": network.config.model_type}


def _refuse_phantom_layers(config: Any, num_tensors: int) -> None:
    """Raise ValueError if the config names more layers or experts than the weights could hold: each would be built."""
    for name, value in config.items() if isinstance(config, dict) else []:
        _refuse_phantom_layers(value, num_tensors)
        if _BUILT_ONE_BY_ONE.fullmatch(name) and isinstance(value, int) and value > num_tensors:
            raise ValueError(f"{name} is {value}, and the weights hold {num_tensors} tensors")


def _check_weights(folder: Path, place: str) -> int:
    """Return the number of tensors, having read the header of every file."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        with translate_errors(f"{place}: {index.name}"):
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if outside := sorted(
            name for name in named if name in (".", "..") or name != Path(str(name)).name or not name.isprintable()
        ):
            raise DataError(f"{place}: {index.name}: names {outside[0][:80]!r}; allowed: files of the folder itself")
        missing = sorted(name for name in named if not (folder / name).is_file())
        if missing:
            raise DataError(f"{place}: {missing[0]} is missing ({len(missing)} of {len(named)} files); fetch it again")
    num_tensors = 0
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
        if size > _MAX_HEADER_BYTES:
            raise DataError(
                f"{place}: {file.name}: cannot be used (its header claims {size:,} bytes; allowed: "
                f"{_MAX_HEADER_BYTES:,})"
            )
        with translate_errors(f"{place}: {file.name}"), safe_open(file, framework="np") as weights:
            names = list(weights.keys())
            if not names:
                raise ValueError("holds no tensors")
            num_tensors += len(names)
    return num_tensors


@contextlib.contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn any complaint of a library about a file that is not ours into one line with exit code 3."""
    try:
        yield
    except BaseException as error:
        # The Rust libraries raise plain Exception, or panic.
        if isinstance(error, StageError | MemoryError) or not (isinstance(error, Exception) or is_panic(error)):
            raise
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{what}: cannot be used ({type(error).__name__}: {reason})") from None


def _make_label(model: ModelParams, facts: dict[str, Any]) -> str:
    size = f"{facts['num_parameters'] / 1e6:,.1f} M parameters"
    if model.kind == "builtin":
        architecture = "ModernBERT" if model.location in BUILTIN_CLASSIFIERS else "Qwen2"
        return f"{model.location}: {architecture} architecture with random weights, {size} (built-in)"
    name = Path(model.location).resolve().name if model.kind == "path" else model.location
    drawn = ", random weights" if model.weights == "random" else ""
    return f"{name}, {facts['model_type']}, {size}{drawn}"
