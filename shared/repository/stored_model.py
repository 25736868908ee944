"""A version of a model that is open for reading."""

from dataclasses import dataclass
from pathlib import Path

from shared.repository.config import ARCHITECTURES, ModelConfig
from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.json_file import read_bounded
from shared.repository.manifest import (
    MANIFEST_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    Manifest,
    check_file,
    check_size,
    read_manifest,
)
from shared.repository.progress import ByteCounter, Progress, no_progress


@dataclass(frozen=True, slots=True)
class StoredModel:
    """An opened version: its folder, its manifest and its chat template (None: the model has none).

    tokenizer.json adds BOS by itself when asked for special tokens and add_bos_token is true. A rendered chat template
    already holds its special tokens: encode it with add_special_tokens=False, and there is never a second BOS.
    """

    path: Path
    manifest: Manifest
    chat_template: str | None

    @classmethod
    def open(cls, folder: Path) -> "StoredModel":
        """Open `<name>/<version>/`: the manifest, every file's size and the SHA-256 of all but the weights are checked.

        Raises BadModelFile for a half-written version, ChecksumMismatch for a changed file.
        """
        manifest = read_manifest(folder)
        if (manifest.name, manifest.version) != (folder.parent.name, folder.name):
            raise BadModelFile(folder, f"holds {manifest.name[:80]} version {manifest.version[:20]}")
        if manifest.config.architecture not in ARCHITECTURES:
            known = ", ".join(sorted(ARCHITECTURES))
            reason = f"unknown architecture {manifest.config.architecture[:60]}; known architectures: {known}"
            raise UnsupportedModel(folder / MANIFEST_FILE, reason)
        for name, entry in manifest.files.items():
            check = check_size if name in manifest.weight_files else check_file
            check(folder, name, entry)
        template = read_bounded(folder / TEMPLATE_FILE).decode() if TEMPLATE_FILE in manifest.files else None
        return cls(folder, manifest, template)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def config(self) -> ModelConfig:
        return self.manifest.config

    @property
    def tokenizer_file(self) -> Path:
        """tokenizer.json, for `tokenizers.Tokenizer.from_file`."""
        return self.path / TOKENIZER_FILE

    @property
    def bos_token(self) -> str | None:
        return self.manifest.bos_token

    @property
    def bos_token_id(self) -> int | None:
        return self.manifest.bos_token_id

    @property
    def eos_token(self) -> str | None:
        return self.manifest.eos_token

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a sequence."""
        return self.manifest.eos_token_ids

    @property
    def add_bos_token(self) -> bool:
        """Whether tokenizer.json puts BOS before a text that is encoded with special tokens."""
        return self.manifest.add_bos_token

    @property
    def generation_defaults(self) -> dict[str, int | float]:
        """Sampling defaults of the model's authors, under vLLM's names."""
        return self.manifest.generation_defaults

    @property
    def weight_format(self) -> str:
        """ "safetensors" or "gguf"."""
        return self.manifest.weight_format

    @property
    def weight_files(self) -> tuple[Path, ...]:
        return tuple(self.path / name for name in self.manifest.weight_files)

    @property
    def size_bytes(self) -> int:
        """All its files together."""
        return sum(entry.size_bytes for entry in self.manifest.files.values())

    def verify(self, progress: Progress = no_progress) -> None:
        """Read every file and compare its SHA-256. Raises ChecksumMismatch or BadModelFile naming the first bad one."""
        self._check(tuple(self.manifest.files), f"verify {self.name}", progress)

    def verify_weights(self, progress: Progress = no_progress) -> None:
        """verify for the weight files alone; opening the model has checked the others."""
        self._check(self.manifest.weight_files, f"verify {self.name}", progress)

    def _check(self, names: tuple[str, ...], stage: str, progress: Progress) -> None:
        counter = ByteCounter(stage, sum(self.manifest.files[name].size_bytes for name in names), progress)
        for name in names:
            check_file(self.path, name, self.manifest.files[name], counter.advance)
