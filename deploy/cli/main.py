"""The command `tokenbus`: a word chooses what runs; its module is imported only then, so that help is quick."""

import importlib
import sys
from collections.abc import Callable

from deploy.cli import output

SERVICES = {
    "gateway": "HTTP face: OpenAI's API, validation, streaming",
    "tokenizer": "chat template, encoding, limits; accepts requests into the log",
    "scheduler": "plans every engine step of the shard's workers; one leads, the others stand by",
    "worker": "runs the model on one device: plans in, sampled tokens out",
    "detokenizer": "text, stop strings and deltas from the log",
}
COMMANDS = {
    "up": ("deploy.cli.up", "run nats-server and all services on this machine"),
    "status": ("deploy.cli.status", "show the processes of a running node"),
    "restart": ("deploy.cli.restart", "start its services anew; --rolling: without one failed stream"),
    "ask": ("deploy.cli.ask", "ask a running Tokenbus one question, over NATS or HTTP"),
    "model": ("deploy.cli.model", "add, list, show, verify, export, quantize and remove models"),
    "log": ("deploy.cli.log", "verify the log: nothing lost, doubled, foreign or computed on a wrong prefix"),
    "bench": ("deploy.cli.bench", "measure this system, or any server with OpenAI's API"),
    "demo": ("deploy.cli.demo", "start everything, ask one question, stop everything"),
    "version": ("deploy.cli.version", "print the version"),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command that argv names; its exit status."""
    status = 0
    try:
        with output.told_when_closed():
            status = _run(sys.argv[1:] if argv is None else argv)
    except* output.OutputClosed:  # from a task group, too
        status = output.STATUS
    return status


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name == "--version":
        name = "version"
    if name not in SERVICES and name not in COMMANDS:
        print(f"tokenbus: unknown command {name!r}; `tokenbus --help` lists them", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(f"services.{name}.__main__" if name in SERVICES else COMMANDS[name][0])
        run: Callable[[list[str]], int | None] = module.main
        return run(rest) or 0
    except KeyboardInterrupt:  # while it is still being imported; after that each command sees to it
        return 130


def usage() -> str:
    """What `tokenbus --help` prints."""
    texts = {name: text for name, (_, text) in COMMANDS.items()}
    lines = ["usage: tokenbus COMMAND [options]", "", "LLM inference as independent services over NATS.", ""]
    lines += ["commands:", *(f"  {name:12} {text}" for name, text in texts.items()), ""]
    lines += ["services, each a process of its own:", *(f"  {name:12} {text}" for name, text in SERVICES.items()), ""]
    lines += ["`tokenbus COMMAND --help` shows the options of each."]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
