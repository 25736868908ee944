"""The data folder of a node: one `tokenbus up` at a time owns it.

logs/<process>.log      output of each process; the previous run's is <process>.log.1
pids/<process>.pid      process id, as long as it runs
config/<process>.toml   what it was started with (nats-server.conf for nats-server)
nats/                   JetStream's store
nats.url, http.url      where clients connect, as long as the node runs
"""

import fcntl
import os
from pathlib import Path
from typing import IO

LAST_WORDS_BYTES = 4096


class FolderInUse(RuntimeError):
    """Another node runs on this folder."""


class DataFolder:
    """Paths below the root, and the lock on it."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Make the folders and take the lock. Raises FolderInUse, OSError."""
        for name in ("logs", "pids", "config", "nats"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        lock = (self.root / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise FolderInUse(f"data folder {self.root} is in use by another tokenbus up") from None
        self._lock = lock
        self.remove_urls()
        for stale in (self.root / "pids").glob("*.pid"):
            stale.unlink()
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

    def log(self, process: str) -> Path:
        """Where a process writes."""
        return self.root / "logs" / f"{process}.log"

    def pid_file(self, process: str) -> Path:
        """Where the id of a process stands."""
        return self.root / "pids" / f"{process}.pid"

    def config(self, file: str) -> Path:
        """A configuration file, with its suffix."""
        return self.root / "config" / file

    def write_url(self, kind: str, url: str) -> None:
        """nats.url or http.url, whole at once."""
        path = self.root / f"{kind}.url"
        draft = path.with_suffix(".url.new")
        draft.write_text(url + "\n", encoding="utf-8")
        draft.replace(path)

    def remove_urls(self) -> None:
        """Nobody serves there any more."""
        for kind in ("nats", "http"):
            (self.root / f"{kind}.url").unlink(missing_ok=True)

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
