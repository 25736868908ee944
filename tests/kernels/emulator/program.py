"""A program that answers each line with one of JSON: what it has loaded serves every question."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from kernels.cuda.sources import ROOT


class Program:
    """Runs while it is entered. Raises AssertionError if it ends before it has answered, or not well."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._environment = environment

    def __enter__(self) -> "Program":
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
        assert self._process.returncode == 0 or error is not None, self._command

    def ask(self, question: str) -> Any:
        """Its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"{self._command} ended at {question}"
        return json.loads(answer)
