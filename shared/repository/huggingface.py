"""A Hugging Face model folder (config.json, tokenizer.json, safetensors) as a ModelSource."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from shared.repository.config_json import parse_config
from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.generation import GENERATION_FILE, generation_defaults
from shared.repository.json_file import read_bounded, read_json_object
from shared.repository.manifest import TEMPLATE_FILE, TOKENIZER_FILE, is_safe_file_name
from shared.repository.source import ModelSource, adds_bos, check_token_ids, load_tokenizer
from shared.repository.weight_check import check_weights

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MAX_TEMPLATE_BYTES = 1 << 20
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")

_KEPT = ("config.json", GENERATION_FILE, "tokenizer_config.json", TOKENIZER_FILE)


def inspect_folder(folder: Path) -> ModelSource:
    """Find and check everything in a Hugging Face folder; nothing is copied yet.

    Raises BadModelFile or UnsupportedModel, naming the file at fault.
    """
    config = parse_config(read_json_object(folder / "config.json"), folder / "config.json")
    weight_files = _weight_files(folder)
    check_weights("safetensors", [folder / name for name in weight_files], config)
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    settings = _optional_object(folder / "tokenizer_config.json")
    bos_token = _special_token(folder, settings, "bos_token")
    eos_token = _special_token(folder, settings, "eos_token")
    eos_token_ids = _eos_token_ids(folder, tokenizer, eos_token)
    check_token_ids(config, tokenizer, eos_token_ids, folder / TOKENIZER_FILE)
    bos_token_id = None if bos_token is None else tokenizer.token_to_id(bos_token)
    names = [name for name in _KEPT if (folder / name).is_file()]
    names += [INDEX_FILE] if (folder / INDEX_FILE).is_file() else []
    template = _chat_template(folder, settings)
    return ModelSource(
        description=folder.resolve().name,
        config=config,
        weight_format="safetensors",
        weight_files=weight_files,
        files={name: folder / name for name in (*names, *weight_files)},
        texts={} if template is None else {TEMPLATE_FILE: template},
        bos_token=bos_token,
        bos_token_id=bos_token_id,
        eos_token=eos_token,
        eos_token_ids=eos_token_ids,
        add_bos_token=adds_bos(tokenizer, bos_token_id),
        generation_defaults=generation_defaults(_optional_object(folder / GENERATION_FILE), folder / GENERATION_FILE),
    )


def refuse_pickle(file: Path) -> None:
    """Raises UnsupportedModel for a file name of pickled weights."""
    if file.suffix.lower() in PICKLE_SUFFIXES:
        raise UnsupportedModel(file, "pickled weights can run code and are never read; convert them to safetensors")


def _weight_files(folder: Path) -> tuple[str, ...]:
    """Names of the safetensors files, from the index when there is one."""
    if (folder / INDEX_FILE).is_file():
        return _indexed_files(folder / INDEX_FILE)
    if (folder / SINGLE_FILE).is_file():
        return (SINGLE_FILE,)
    for file in sorted(folder.iterdir()):
        refuse_pickle(file)
    raise BadModelFile(folder, f"holds neither {SINGLE_FILE} nor {INDEX_FILE}")


def _indexed_files(index: Path) -> tuple[str, ...]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModelFile(index, "weight_map is missing")
    names: set[str] = set()
    for name in weight_map.values():
        if not isinstance(name, str) or not is_safe_file_name(name):
            raise BadModelFile(index, "weight_map names a file that cannot be in this folder")
        refuse_pickle(index.parent / name)
        if not name.endswith(".safetensors"):
            raise BadModelFile(index, f"{name} is no safetensors file")
        names.add(name)
    return tuple(sorted(names))


def _eos_token_ids(folder: Path, tokenizer: Tokenizer, eos_token: str | None) -> tuple[int, ...]:
    """All EOS ids of generation_config.json, else of config.json, else the tokenizer's own."""
    for name in (GENERATION_FILE, "config.json"):
        value = _optional_object(folder / name).get("eos_token_id")
        ids = [value] if type(value) is int else value
        if ids is None:
            continue
        if not isinstance(ids, list) or any(type(item) is not int for item in ids):
            raise BadModelFile(folder / name, "eos_token_id is neither an id nor a list of ids")
        return tuple(dict.fromkeys(ids))
    own = None if eos_token is None else tokenizer.token_to_id(eos_token)
    return () if own is None else (own,)


def _special_token(folder: Path, settings: Mapping[str, Any], name: str) -> str | None:
    """A special token's text from tokenizer_config.json, else from special_tokens_map.json."""
    value = settings.get(name) or _optional_object(folder / "special_tokens_map.json").get(name)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise BadModelFile(folder / "tokenizer_config.json", f"{name} is not a string")
    return value


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template in chat_template.jinja, else in tokenizer_config.json (of several, the one named default)."""
    if (folder / TEMPLATE_FILE).is_file():
        try:
            return read_bounded(folder / TEMPLATE_FILE, MAX_TEMPLATE_BYTES).decode()
        except UnicodeDecodeError:
            raise BadModelFile(folder / TEMPLATE_FILE, "is not UTF-8") from None
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    if value is not None and (not isinstance(value, str) or len(value) > MAX_TEMPLATE_BYTES):
        raise BadModelFile(folder / "tokenizer_config.json", "chat_template is no template")
    return value


def _optional_object(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.is_file() else {}
