"""Base models as transformers folders: config, safetensors weights and tokenizer, checked and kept once."""

import importlib.metadata
import json
import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tasks.data.builtin import corpus, tiny_models
from tasks.data.row_tokenizer import translate_errors
from tasks.data.sources.row_policy import read_rows
from tasks.data.sources.row_store import MAX_CLASSES, store_rows
from tasks.machine.host_facts import read_free_memory_bytes
from tasks.params.local_files import IN_GIT_LFS
from tasks.params.sources import BUILTIN_CLASSIFIERS, DatasetParams, ModelParams
from tasks.process.bounded_child import BoundedChild
from tasks.process.failure import DataError
from tasks.records.manifests import BaseModelManifest
from tasks.services import hub
from tasks.services.hub import INDEX, SMALL_FILES, WEIGHTS_FILES
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
_NUMBER = re.compile(r"\d+")
_MOST_LAYERS = 1_000
"""Of each kind, and experts, in a config.json without weights that say how many there may be."""
_BYTES_PER_PARAMETER = 4
_QUANTISED = ("quantization_config", "compression_config")
_SEED = 20_240_607
"""Of a head that is drawn."""
_WHOLE = ("float64", "float32", "bfloat16", "float16")
"""Types of weights that are not quantised."""
_TEXTS = "builtin:docstrings"
"""What the tokenizers of built-in models are made from."""
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
    Raises DataError if the model has no safetensors weights or an unknown architecture. `child`: the process that reads
    it.
    """
    if child is None:
        with BoundedChild() as child:
            return store_model(model, commit=commit, class_names=class_names, child=child)
    place, has_weights, texts = f"model.source {model.source}", model.weights == "pretrained", list[str]()
    identity = {**_make_identity(model, commit), "class_names": list(class_names)}
    if class_names and model.kind != "builtin":
        # Earlier versions took the classes of its own head in whatever order.
        identity["head"] = "by name"
    folder = STORE / digest_json(identity)[:32]
    if is_kept(folder):
        _log.info("%s: reused the model in %s", model.source, folder)
        return folder
    with fill_folder(folder) as new:
        if model.kind == "builtin":
            number = tiny_models.NUM_TOKENIZER_ROWS
            stored = store_rows(DatasetParams(source=_TEXTS), number)
            texts = [row.text for _, rows in read_rows(stored.file, 0, number) for row in rows]
        elif commit is not None:
            hub.download_model(model.location, commit, new, has_weights=has_weights)
            _select_files(new, place, has_weights=has_weights)
        else:
            # Copies, not links: DVC makes its outputs read-only, and the user's own files must stay as they are.
            for name in identity["files"]:
                shutil.copyfile(Path(model.location, name), new / name)
            # The store is named after what the source held.
            if {file.name: digest_file(file) for file in new.iterdir()} != identity["files"]:
                raise DataError(f"{place}: changed while it was read; run again")
        num_bytes = count_bytes(new, model)
        facts = child.run(_make, new, model, class_names, texts, what=place, num_bytes=num_bytes)
        size = f"{facts['num_parameters'] / 1e6:,.1f} M parameters"
        name = Path(model.location).resolve().name if model.kind == "path" else model.location
        label = f"{name}, {facts['model_type']}, {size}" + ", random weights" * (model.weights == "random")
        if model.kind == "builtin":
            architecture = "ModernBERT" if name in BUILTIN_CLASSIFIERS else "Qwen2"
            label = f"{name}: {architecture} architecture with random weights, {size} (built-in)"
        license_id = None if commit is None else hub.read_card(model.location, commit, kind="model")[0]
        write_manifest(new, model, commit=commit, license=license_id, label=label, **facts)
    _log.info("%s: %s, stored in %s", model.source, label, folder)
    return folder


def write_manifest(folder: Path, model: ModelParams, **facts: Any) -> None:
    """Write the manifest of a model whose other files are all in the folder, with these facts."""
    files = {file.name: digest_file(file) for file in sorted(folder.iterdir())}
    BaseModelManifest(
        source=model.source, kind=model.kind, revision=model.revision, digest=digest_json(files), files=files,
        is_random_weights=model.kind == "builtin" or model.weights == "random", **facts,
    ).write(folder)  # fmt: skip


def count_bytes(folder: Path, model: ModelParams) -> int:
    """Return the memory that a model may take beside config and tokenizer: its weights and their gradient in fp32."""
    if model.weights == "random":
        return read_free_memory_bytes()[0]
    return 6 * sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def fetch_config(model: ModelParams, folder: Path, *, commit: str | None, is_classifier: bool | None) -> None:
    """Fill `folder` with the config.json of a model, and with nothing else of it; raises as store_model.

    `is_classifier`: whether it tells classes of texts apart; None for a model of images.
    """
    place = f"model.source {model.source}"
    if model.kind == "hub":
        assert commit is not None
        hub.download_files(model.location, commit, folder, ["config.json"])
    else:
        file = Path(model.location) / "config.json"
        check_files([file, *file.parent.glob("*.safetensors")], place)
        folder.mkdir(parents=True)
        shutil.copyfile(file, folder / file.name)
    with BoundedChild() as child:
        child.run(_read_outline, folder, place, is_classifier, what=place)


def _read_outline(folder: Path, place: str, is_classifier: bool | None) -> None:
    """Read the model that config.json describes: no weights say how large it may be."""
    _read_config(folder, place)
    if is_classifier is not None:
        _build_outline(folder, place, is_classifier=is_classifier)


def _make(folder: Path, model: ModelParams, class_names: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Make what was fetched the base model; return `num_parameters` and `model_type`, having read all of it."""
    place = f"model.source {model.source}"
    if model.kind == "builtin" and model.location in BUILTIN_CLASSIFIERS:
        tiny_models.write_tiny_modernbert(folder, texts, class_names)
    elif model.kind == "builtin":
        tiny_models.write_tiny_qwen2(folder, texts)
    elif model.weights == "random":
        from transformers import AutoModelForCausalLM

        outline = _build_outline(folder, place, is_classifier=False)
        needed = outline.num_parameters() * _BYTES_PER_PARAMETER
        with translate_errors(f"{place}: config.json"):
            if needed > (free := read_free_memory_bytes()[0]):
                raise ValueError(f"its weights take {needed:,} bytes of memory; allowed: {free:,}")
            tiny_models.draw_weights(
                folder, partial(AutoModelForCausalLM.from_config, outline.config, trust_remote_code=False)
            )
    check_files((file for name in SMALL_FILES if (file := folder / name).exists()), place)
    num_tensors = _check_weights(folder, place)
    network = _build_outline(folder, place, most_layers=num_tensors, is_classifier=bool(class_names))
    refuse_not_finite(folder, place, parameters={name for name, _ in network.named_parameters()})
    num_parameters = network.num_parameters()
    if class_names and model.kind != "builtin":
        with translate_errors(f"{place}: as a classifier of {len(class_names)} classes"):
            num_parameters = give_head(folder, class_names)
    return {"num_parameters": num_parameters, "model_type": network.config.model_type}


def _make_identity(model: ModelParams, commit: str | None) -> dict[str, Any]:
    """Return everything that the folder depends on, apart from its classes."""
    identity: dict[str, Any] = {"source": model.source}
    if model.kind == "builtin" or model.weights == "random":
        code = sorted(Path(tiny_models.__file__).parent.glob("*.py"))
        identity["weights"] = model.weights
        identity["versions"] = {name: importlib.metadata.version(name) for name in _LIBRARIES}
        identity["code"] = {file.name: digest_file(file) for file in code}
    if model.kind == "builtin":
        return {**identity, "packages": corpus.read_package_versions()}
    if model.kind == "hub":
        return {**identity, "revision": model.revision, "commit": commit}
    has_weights, place = model.weights == "pretrained", f"model.source {model.source}"
    files = _select_files(Path(model.location), place, has_weights=has_weights)
    return {**identity, "files": {file.name: digest_file(file) for file in files}}


def _build_outline(folder: Path, place: str, *, is_classifier: bool, most_layers: int = _MOST_LAYERS) -> Any:
    """Return the model that config.json describes, of shapes alone. Raises DataError if it is none for texts."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if is_classifier else AutoModelForCausalLM
    _read_config(folder, place, most_layers=most_layers)
    with translate_errors(f"{place}: config.json"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if config.get_text_config(decoder=True) is not config:
            others = ", ".join(name for name in config.sub_configs if name != "text_config") or "an encoder, too"
            raise ValueError(f"describes a model of more than texts ({others}); allowed: one of texts alone")
        with torch.device("meta"):
            return kind.from_config(config, trust_remote_code=False)


def _read_config(folder: Path, place: str, *, most_layers: int = _MOST_LAYERS) -> None:
    """Raise DataError for a config.json that no library should be given."""
    check_files([folder / "config.json"], place)
    with translate_errors(f"{place}: config.json"):
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


def _select_files(folder: Path, place: str, *, has_weights: bool) -> list[Path]:
    """Return the files of a model folder that are data: never pickles (.bin, .pt), never code (.py).

    Without `has_weights` those that are no weights.
    """
    files = [file for name in SMALL_FILES if (has_weights or name != INDEX) and (file := folder / name).exists()]
    if folder / "config.json" not in files:
        raise DataError(f"{place}: config.json is missing; allowed: the folder of a transformers model")
    if has_weights:
        weights = [file for pattern in WEIGHTS_FILES for file in sorted(folder.glob(pattern))]
        if not weights:
            pickles = sorted(file.name for end in ("bin", "pt", "pth", "pkl") for file in folder.glob(f"*.{end}"))
            text = f"only {pickles[0]}, and pickled weights are refused" if pickles else "none"
            raise DataError(
                f"{place}: needs model.safetensors, or model-*.safetensors with an index; found {text}; "
                "write them with transformers: AutoModelForCausalLM.from_pretrained(MODEL).save_pretrained(FOLDER)"
            )
        files += weights
    check_files(files, place)
    return files


def check_files(files: Iterable[Path], place: str) -> None:
    """Raise DataError for what is no file, or far larger than its kind: reading it would not end or take all memory."""
    for file in files:
        if not file.is_file():
            raise DataError(f"{place}: {file.name}: is no file with content; allowed: plain files")
        size, allowed = file.stat().st_size, _MAX_SMALL_BYTES.get(file.name, _MAX_OTHER_BYTES)
        if size > allowed and file.suffix != ".safetensors":
            raise DataError(f"{place}: {file.name}: cannot be used ({size:,} bytes; allowed: {allowed:,})")
        with file.open("rb") as opened:
            if opened.read(len(IN_GIT_LFS)) == IN_GIT_LFS:
                raise DataError(f"{place}: {file.name}: is what Git LFS has in its place: type git lfs pull")


def _refuse_phantom_layers(config: Any, num_tensors: int) -> None:
    """Raise ValueError if the config names more layers or experts than the weights could hold: each would be built."""
    for name, value in config.items() if isinstance(config, dict) else []:
        _refuse_phantom_layers(value, num_tensors)
        if _BUILT_ONE_BY_ONE.fullmatch(name) and isinstance(value, int) and value > num_tensors:
            raise ValueError(f"{name} is {value}, and the weights hold {num_tensors} tensors")


def _check_weights(folder: Path, place: str) -> int:
    """Return the number of tensors, having read the header of every file."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).is_file():
        with translate_errors(f"{place}: {INDEX}"):
            named = set(map(str, json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        if missing := sorted(named.difference(file.name for file in files)):
            raise DataError(
                f"{place}: {INDEX}: {missing[0][:80]!r} is missing ({len(missing)} of {len(named)} files); allowed: "
                "files of the folder itself; fetch it again"
            )
    num_tensors = 0
    for file in files:
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


def refuse_not_finite(folder: Path, place: str, *, parameters: Collection[str]) -> None:
    """Raise DataError for the first of these parameters that is quantised, or holds NaN or an infinity.

    And for NaN in any other tensor.

    The embedding of a token that no text has may hold them and train well, but no difference between two updates of it
    is a number. Buffers may hold infinities, as masks do, and files may have other names than the model. One tensor at
    a time is read.
    """
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in sorted(weights.keys()):
                values = weights.get_tensor(name)
                kind = str(values.dtype).removeprefix("torch.")
                if kind not in _WHOLE and (name in parameters or kind.startswith("float")):
                    raise DataError(
                        f"{place}: {file.name}: {name} is {kind}: quantised weights cannot be trained whole; allowed: "
                        f"{', '.join(_WHOLE)}"
                    )
                if not values.is_floating_point():
                    continue
                wrong = ~values.isfinite() if name in parameters else values.isnan()
                if number := int(wrong.sum()):
                    raise DataError(
                        f"{place}: {file.name}: {name} holds {number:,} values that are no finite numbers; allowed: "
                        "finite ones, such as 0 in rows of the embedding that no token uses"
                    )


def require_all_weights(model: Any, results: Mapping[str, Any], is_needed: Callable[[str], bool] = bool) -> None:
    """Raise ValueError for a tensor that transformers drew at random, or for a layer of the weights that it left out.

    `found`: its loading info.
    """
    for name, has, wanted in sorted(results["mismatched_keys"]):
        if is_needed(name):
            raise ValueError(f"{name} has the shape {list(has)} in the weights, and {list(wanted)} by config.json")
    if lacking := sorted(filter(is_needed, results["missing_keys"])):
        more = f" ({len(lacking)} such)" if len(lacking) > 1 else ""
        raise ValueError(f"the weights lack {lacking[0]}{more}; allowed: every tensor; save the whole model")
    if untied := {*model.get_expanded_tied_weights_keys(all_submodels=True)}.difference(model.all_tied_weights_keys):
        raise ValueError(
            f"the weights have another {min(untied)} than what config.json ties it to; allowed: equal ones, or "
            "tie_word_embeddings: false"
        )
    kinds = {_NUMBER.sub("", name) for name, _ in model.named_parameters()}
    if beyond := sorted(name for name in results["unexpected_keys"] if _NUMBER.sub("", name) in kinds):
        raise ValueError(f"the weights have {beyond[0]}, and config.json has fewer layers; allowed: as many")


def load_classifier(folder: Path, class_names: Sequence[str]) -> Any:
    """Return the transformers model in the folder as one for these classes, in fp32.

    A head for as many classes is kept, and put into their order where config.json names the same; another one is drawn
    anew, the same in every run. The caller's random state is left as it was. Raises ValueError if anything but the head
    had to be drawn.
    """
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    # It warns that a head is new, which is what is wanted.
    logging.set_verbosity_error()
    named = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).id2label or {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model, pretrained = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=len(class_names),
            id2label=dict(enumerate(class_names)),
            label2id={name: number for number, name in enumerate(class_names)},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
        )
    body = f"{model.base_model_prefix}."
    require_all_weights(model, pretrained, lambda name: name.startswith(body) and "pooler" not in name)
    drawn = {*pretrained["missing_keys"], *(name for name, *_ in pretrained["mismatched_keys"])}
    _order_head(model, [str(name) for _, name in sorted(named.items())], class_names, drawn=drawn)
    if model.config.pad_token_id is None:
        # Where attention is causal the model looks for the last token that is none.
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model.config.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return model


def _order_head(model: Any, named: Sequence[str], class_names: Sequence[str], *, drawn: Collection[str]) -> None:
    """Put the outputs of a head that was not drawn, for classes of these names, into the order of `class_names`.

    Names count without case; others than those are taken to be in order already, which is warned of.
    """
    import torch

    own, wanted = ([name.casefold() for name in names] for names in (named, class_names))
    heads = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear)
        and layer.out_features == len(wanted)
        and not name.startswith(f"{model.base_model_prefix}.")
    ]
    # The last layer gives the classes.
    for name, layer in heads[-1:]:
        if f"{name}.weight" in drawn or own == wanted:
            continue
        if sorted(own) == sorted({*wanted}):
            order = [own.index(part) for part in wanted]
            with torch.no_grad():
                for values in layer.parameters():
                    values.copy_(values[order])
        elif not all(map(str.isdecimal, wanted)):
            _log.warning("the model's classes %s are taken for %s, in this order", list(named), list(class_names))


def give_head(folder: Path, class_names: Sequence[str]) -> int:
    """Make the model in the folder one for these classes, as load_classifier does; return its number of parameters."""
    from training.model.weights import without_deepspeed

    model = load_classifier(folder, class_names)
    for pattern in (*WEIGHTS_FILES, "*.index.json"):
        for file in folder.glob(pattern):
            file.unlink()
    with without_deepspeed():
        model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        # safetensors lets only the owner read what it writes.
        file.chmod(0o644)
    return int(model.num_parameters())
