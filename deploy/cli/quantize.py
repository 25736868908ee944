"""`tokenbus model quantize`: its options, and what it prints."""

import argparse
import importlib
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy.cli.progress import model_progress
from shared.quantization.scheme import GROUP_SIZES
from shared.repository.errors import BadModelFile, ModelError
from shared.repository.json_file import read_bounded
from shared.repository.stored_model import StoredModel

METHODS = ("awq", "gptq", "w8a16", "fp8")
GROUPED = ("awq", "gptq")
MAX_TEXT_BYTES = 64 << 20
_DEFAULT_GROUP_SIZE = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand but --version."""
    parser.add_argument("name")
    parser.add_argument("--method", choices=METHODS, required=True, help="4 bits: awq, gptq; 8 bits: w8a16, fp8")
    parser.add_argument(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        help=f"inputs that share a scale, of awq and gptq (default: {_DEFAULT_GROUP_SIZE})",
    )
    parser.add_argument(
        "--desc-act", action="store_true", help="gptq: the most important inputs first, a little better"
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        required=True,
        metavar="FILE",
        help="plain text (UTF-8) of the kind that the model will read, some thousand words or more",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="new Hugging Face folder to write")


def quantize(model: StoredModel, args: argparse.Namespace, console: Console) -> None:
    """Raises ModelError for options that do not go together and for a calibration file that is no text, and what
    quantising raises."""
    if args.method not in GROUPED and args.group_size is not None:
        raise ModelError(f"--group-size is of {' and '.join(GROUPED)}; {args.method} has a scale an output")
    if args.method != "gptq" and args.desc_act:
        raise ModelError(f"--desc-act is of gptq, not of {args.method}")
    text = _read_text(args.calibration)
    # By name, as the services are: only the worker knows how models compute.
    command: Any = importlib.import_module("services.worker.quantize.command")
    quantizer: Any = importlib.import_module("services.worker.quantize.quantizer")
    recipe = quantizer.Recipe(args.method, args.group_size or _DEFAULT_GROUP_SIZE, args.desc_act)
    with model_progress(console) as progress:
        command.quantise_model(model, recipe, text, args.output, progress)


def _read_text(file: Path) -> str:
    """Raises BadModelFile for what cannot be read, and for bytes that are no text: quantised for these, a model that
    reads text would be worse, and nobody would know why."""
    try:
        return read_bounded(file, MAX_TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadModelFile(file, "--calibration is not UTF-8 text") from None
