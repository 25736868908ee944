"""The data folder of a node: one `tokenbus up` at a time owns it, and only its owner may look into it.

logs/<process>.log      output of each process; the previous run's is <process>.log.1
pids/<process>.pid      process id, as long as it runs
config/<process>.toml   what it was started with (nats-server.conf for nats-server)
nats/                   JetStream's store
credentials/            of a secured node: keys and certificates (deploy/nats/identities.py says which)
nats.url, http.url      where clients connect, as long as the node runs
nats.credentials        folder of the keys that they sign in to nats.url with; not there where nobody signs in
http.urls               http.url, then the own port of each further gateway, one URL per line
lock                    held by the node, as long as it runs
control.sock            where `tokenbus status` and `tokenbus restart` ask
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Annotated

import msgspec

NodeDataDir = Annotated[str, msgspec.Meta(description="data folder of the node; none: below XDG_DATA_HOME")]
"""Option of commands that ask a running node."""

LAST_WORDS_BYTES = 4096
CREDENTIALS_FILE = "nats.credentials"
URL_FILES = ("nats.url", "http.url", "http.urls", CREDENTIALS_FILE)


class FolderInUse(RuntimeError):
    """Another node runs on this folder."""


class DataFolder:
    """Paths below the root, and the lock on it."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._lock: IO[bytes] | None = None

    @classmethod
    def at(cls, data_dir: str) -> "DataFolder":
        """That of an option --data-dir; "" means the default one."""
        return cls(Path(data_dir) if data_dir else default_data_dir())

    def open(self) -> None:
        """Make the folders and take the lock. Raises FolderInUse, OSError.

        The logs of the run before are kept in their place until there is a new run (rotate_logs).
        What is in them is for the owner alone: prompts, answers, a password in nats.url. A root that is there already
        keeps the mode that somebody gave it.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("logs", "pids", "config", "nats"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        lock = (self.root / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise FolderInUse(
                f"data folder {self.root} is in use by a running node (`tokenbus status --data-dir {self.root}`)"
            ) from None
        self._lock = lock
        self.remove_urls()
        for stale in (self.root / "pids").glob("*.pid"):
            stale.unlink()

    def rotate_logs(self) -> None:
        """Put those of the run before aside."""
        for log in (self.root / "logs").glob("*.log"):
            log.replace(log.with_name(log.name + ".1"))

    def close(self) -> None:
        """Release the lock; the URLs no longer hold."""
        self.remove_urls()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def store(self) -> Path:
        """JetStream's store."""
        return self.root / "nats"

    @property
    def credentials(self) -> Path:
        """Keys and certificates of a secured node; not there on an open one."""
        return self.root / "credentials"

    def has_log(self, account: str) -> bool:
        """Whether the store holds streams of this NATS account; nats-server keeps each account's in a folder."""
        return any((self.store / "jetstream" / account / "streams").glob("*"))

    def write_credentials(self, credentials: Path) -> None:
        """Tell clients of the running node where their keys are."""
        self.write_urls(CREDENTIALS_FILE, [str(credentials.absolute())])

    @property
    def client_credentials(self) -> Path:
        """Where clients find their keys: what the running node has written down, else the folder's own."""
        try:
            return Path((self.root / CREDENTIALS_FILE).read_text(encoding="utf-8").strip())
        except FileNotFoundError:
            return self.credentials

    def log(self, process: str) -> Path:
        """Where a process writes."""
        return self.root / "logs" / f"{process}.log"

    def pid_file(self, process: str) -> Path:
        """Where the id of a process stands."""
        return self.root / "pids" / f"{process}.pid"

    def config(self, file: str) -> Path:
        """A configuration file, with its suffix."""
        return self.root / "config" / file

    @property
    def control(self) -> Path:
        """The socket that controls the node."""
        return self.root / "control.sock"

    def write_urls(self, file: str, urls: Sequence[str]) -> None:
        """One of URL_FILES, whole at once."""
        path = self.root / file
        draft = self.root / f"{file}.new"
        draft.write_text("".join(f"{url}\n" for url in urls), encoding="utf-8")
        draft.replace(path)

    def remove_urls(self) -> None:
        """Nobody serves there any more."""
        for file in URL_FILES:
            (self.root / file).unlink(missing_ok=True)

    def last_words(self, process: str, num_lines: int) -> str:
        """The end of a process's log."""
        try:
            with self.log(process).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LAST_WORDS_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-num_lines:])


def default_data_dir() -> Path:
    """$XDG_DATA_HOME/tokenbus/node."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "tokenbus" / "node"
