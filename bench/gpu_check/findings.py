"""What a part finds, kept on disk from the first finding on."""

from pathlib import Path

import msgspec

Cell = str | float | None


class Check(msgspec.Struct, frozen=True):
    """Whether something is as it must be. detail: numbers, or what is wrong."""

    what: str
    is_good: bool
    detail: str = ""


class Table(msgspec.Struct):
    """rows: a cell for each column; None where there is nothing to say."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = []


class Found(msgspec.Struct, kw_only=True):
    """Of one part. skipped: why it has nothing to do here, empty if it has."""

    checks: list[Check] = []
    tables: list[Table] = []
    notes: list[str] = []
    skipped: str = ""


class Findings:
    """Each is in the file before the call returns: whoever ends this process loses nothing."""

    def __init__(self, file: Path) -> None:
        self.found = Found()
        self._file = file
        self._save()

    def check(self, what: str, is_good: bool, detail: str = "") -> None:
        """Something that passed or failed."""
        self.found.checks.append(Check(what, is_good, detail))
        self._save()

    def row(self, title: str, **cells: Cell) -> None:
        """Of the table with this title, whose columns are those of its first row and of later ones that it lacks."""
        table = next((table for table in self.found.tables if table.title == title), None)
        if table is None:
            table = Table(title, [])
            self.found.tables.append(table)
        for name in cells:
            if name not in table.columns:
                table.columns.append(name)
                for row in table.rows:
                    row.append(None)
        table.rows.append([cells.get(name) for name in table.columns])
        self._save()

    def note(self, text: str) -> None:
        """What a reader should know."""
        self.found.notes.append(text)
        self._save()

    def skip(self, reason: str) -> None:
        """There is nothing for this part to do here."""
        self.found.skipped = reason
        self._save()

    def _save(self) -> None:
        whole = self._file.with_suffix(".new")
        whole.write_bytes(msgspec.json.encode(self.found))
        whole.replace(self._file)


def load_found(file: Path) -> Found:
    """Nothing where the file is not there, or no Found."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Found)
    except (OSError, msgspec.MsgspecError):
        return Found()
