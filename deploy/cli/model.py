"""`tokenbus model`: what is in the model repository, and what goes into it."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from deploy.cli import quantize
from deploy.cli.errors import one_line
from deploy.cli.progress import model_progress
from shared.repository.errors import BadModelFile, ModelError, ModelNotFound
from shared.repository.inspect import default_name, inspect_path
from shared.repository.known import KNOWN_MODELS
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel

_PLAIN_WIDTH = 160
_INTERRUPTED = 130
_DTYPES = ("auto", "float32", "bfloat16", "float16")


def main(argv: list[str]) -> int:
    """Run `tokenbus model` with these words; its exit status. Errors are one line on stderr and status 1."""
    parser = argparse.ArgumentParser(prog="tokenbus model", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands and their options."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = _command(commands, "add", _add, "store a model: a known name, a Hugging Face folder or a GGUF file")
    add.add_argument("source", help=f"path, or one of: {', '.join(sorted(KNOWN_MODELS))}")
    add.add_argument("--name", help="name to store it under (default: made from the source)")
    add.add_argument("--version", help="a new version's number (default: one more than the newest)")
    _command(commands, "list", _list, "list models and versions")
    show = _command(commands, "show", _show, "show what is stored of a model")
    verify = _command(commands, "verify", _verify, "compare every file with its SHA-256")
    remove = _command(commands, "remove", _remove, "remove a version, or all versions of a model")
    export = _command(commands, "export", _export, "write a model as a Hugging Face folder")
    show.add_argument("name")
    verify.add_argument("name", nargs="?", help="default: all models")
    remove.add_argument("name")
    export.add_argument("name")
    export.add_argument("folder", type=Path, help="new folder to write")
    export.add_argument("--dtype", choices=_DTYPES, default="auto", help="auto: the model's own (default)")
    quantise = _command(
        commands, "quantize", _quantize, "write a model with 4- or 8-bit weights as a Hugging Face folder"
    )
    quantize.add_arguments(quantise)
    for command in (show, verify, remove, export, quantise):
        every = command in (verify, remove)
        command.add_argument("--version", help="default: all of them" if every else "default: the newest")


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand; its exit status."""
    repository = ModelRepository(args.model_repository)
    command: Callable[[ModelRepository, argparse.Namespace], int] = args.command
    try:
        return command(repository, args)
    except (ModelError, OSError) as error:
        print(f"tokenbus model: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _command(commands: Any, name: str, run_it: Callable[..., int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--model-repository", type=Path, metavar="PATH", help="its folder (default: $XDG_DATA_HOME/tokenbus/models)"
    )
    parser.set_defaults(command=run_it)
    return parser


def _add(repository: ModelRepository, args: argparse.Namespace) -> int:
    path = Path(args.source)
    with model_progress(_console(stderr=True)) as progress:
        if path.exists():
            name = args.name or default_name(path)
            repository.check_new(name, args.version)  # before files are looked into
            before = repository.versions(name)
            model = repository.add(inspect_path(path), name, args.version, progress)
        elif args.source in KNOWN_MODELS:
            before = repository.versions(args.name or args.source)
            model = repository.add_known(args.source, args.name, args.version, progress)
        else:
            known = ", ".join(sorted(KNOWN_MODELS))
            raise ModelNotFound(
                f"{args.source[:200]}: no such file or folder, and no known model; known models: {known}"
            )
    verb = "Already there:" if model.version in before else "Added"
    print(f"{verb} {model.name} version {model.version} ({_size(model.size_bytes)}) in {model.path}")
    return 0


def _list(repository: ModelRepository, args: argparse.Namespace) -> int:
    table = _table("model", "version", "architecture", "weights", "size", "state")
    for name in repository.names():
        for version in repository.versions(name):
            try:
                model = repository.open(name, version)
            except BadModelFile as error:
                table.add_row(name, version, "", "", "", f"damaged: {error.reason}")
                continue
            table.add_row(
                name, version, model.config.architecture, model.weight_format, _size(model.size_bytes), "ready"
            )
    console = _console()
    if table.row_count:
        console.print(table)
    else:
        console.print(f"No models in {repository.root}. `tokenbus model add smollm2-135m` adds one.", highlight=False)
    return 0


def _show(repository: ModelRepository, args: argparse.Namespace) -> int:
    model = _open(repository, args.name, args.version)
    manifest = model.manifest
    table = _table("what", "value")
    rows: dict[str, object] = {
        "name": model.name,
        "version": model.version,
        "folder": model.path,
        "source": manifest.source,
        "created": manifest.created,
        "weights": f"{model.weight_format}, {_size(model.size_bytes)} in all",
        **{name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(model.config).items()},
        "bos_token": f"{model.bos_token!r} ({model.bos_token_id}), added to prompts: {_yes(model.add_bos_token)}",
        "eos_token_ids": ", ".join(str(token_id) for token_id in model.eos_token_ids),
        "chat_template": _yes(model.chat_template is not None),
        "generation_defaults": manifest.generation_defaults or "none",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    files = _table("file", "size", "sha256")
    for name, entry in sorted(manifest.files.items()):
        files.add_row(name, _size(entry.size_bytes), entry.sha256)
    _console().print(table, files)
    return 0


def _verify(repository: ModelRepository, args: argparse.Namespace) -> int:
    names = [args.name] if args.name else repository.names()
    num_bad = 0
    with model_progress(_console(stderr=True)) as progress:
        for name in names:
            for version in [args.version] if args.version else repository.versions(name) or [""]:
                try:
                    model = repository.open(name, version or None)
                    model.verify(progress)
                except BadModelFile as error:
                    num_bad += 1
                    print(f"tokenbus model: {one_line(error)}", file=sys.stderr)
                    continue
                print(f"{name} version {model.version}: {len(model.manifest.files)} files as they were stored")
    return 1 if num_bad else 0


def _remove(repository: ModelRepository, args: argparse.Namespace) -> int:
    removed = repository.remove(args.name, args.version)
    print(f"Removed {args.name} version{'s' if len(removed) > 1 else ''} {', '.join(removed)}")
    return 0


def _export(repository: ModelRepository, args: argparse.Namespace) -> int:
    from shared.repository.export import export_model  # imports torch, which the other commands do without

    model = _open(repository, args.name, args.version)
    with model_progress(_console(stderr=True)) as progress:
        export_model(model, args.folder, None if args.dtype == "auto" else args.dtype, progress)
    print(f"Exported {model.name} version {model.version} to {args.folder}")
    return 0


def _quantize(repository: ModelRepository, args: argparse.Namespace) -> int:
    model = _open(repository, args.name, args.version)
    quantize.quantize(model, args, _console(stderr=True))
    print(f"Quantised {model.name} version {model.version} to {args.output}; `tokenbus model add` stores it")
    return 0


def _open(repository: ModelRepository, name: str, version: str | None) -> StoredModel:
    """The version asked for, or the newest even when it is damaged: a person wants to know."""
    found = repository.versions(name)
    return repository.open(name, version or (found[-1] if found else None))


def _console(stderr: bool = False) -> Console:
    """A console; wide when its output goes to a file or a pipe, so that no cell is cut."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_PLAIN_WIDTH)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _size(num_bytes: int) -> str:
    size, units = float(num_bytes), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
