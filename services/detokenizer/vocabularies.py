"""Vocabularies of the models that requests name, loaded off the event loop."""

import asyncio
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger
from tokenizers import Tokenizer

from services.detokenizer.core.vocabulary import Vocabulary
from shared.messages.pipeline import Request
from shared.repository.errors import ModelError
from shared.repository.store import ModelRepository

RETRY_S = 5.0

Key = tuple[str, str]


class Vocabularies:
    """By model name and version. on_loaded is called once a vocabulary that was asked for is there."""

    def __init__(
        self, repository: ModelRepository, on_loaded: Callable[[], None], logger: FilteringBoundLogger
    ) -> None:
        self._repository = repository
        self._on_loaded = on_loaded
        self._logger = logger
        self._loaded: dict[Key, Vocabulary] = {}
        self._loading: dict[Key, asyncio.Task[None]] = {}

    def of(self, request: Request) -> Vocabulary | None:
        """The vocabulary of the request's model; None while it is being loaded."""
        key = (request.model, request.model_version)
        found = self._loaded.get(key)
        if found is None and key not in self._loading:
            self._loading[key] = asyncio.create_task(self._load(key))
        return found

    async def preload(self, name: str) -> None:
        """Load the newest version of a model; a known one is added if absent. Raises ModelError."""
        model = await asyncio.to_thread(self._repository.ensure, name)
        self._loaded[model.name, model.version] = await asyncio.to_thread(self._read, (model.name, model.version))

    async def _load(self, key: Key) -> None:
        """Load with retries: the model may be on its way to this machine."""
        while True:
            try:
                self._loaded[key] = await asyncio.to_thread(self._read, key)
                break
            except ModelError as error:
                self._logger.warning("no tokenizer for a running request", model=key, error=str(error))
            except Exception:  # the tokenizers library raises no narrower type on a file that it cannot read
                self._logger.exception("the tokenizer of a running request cannot be loaded", model=key)
            await asyncio.sleep(RETRY_S)
        del self._loading[key]
        self._on_loaded()

    def _read(self, key: Key) -> Vocabulary:
        model = self._repository.open(*key)
        return Vocabulary(Tokenizer.from_file(str(model.tokenizer_file)))

    @property
    def names(self) -> list[str]:
        """What is loaded, as name/version."""
        return [f"{name}/{version}" for name, version in sorted(self._loaded)]

    async def close(self) -> None:
        """Give up what is still loading."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
