"""The detokenizer's model at start: added where it is known and absent, else an error for the operator."""

import asyncio
import functools
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from services.detokenizer.vocabularies import Vocabularies
from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.repository.errors import ModelNotFound
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from tests.servers import NatsServer
from tests.tiny_models import make_tiny_model
from tests.waiting import LIMIT_S


async def test_a_known_model_is_added_if_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = await asyncio.to_thread(make_tiny_model, tmp_path / "source", "LlamaForCausalLM")
    source = await asyncio.to_thread(inspect_path, folder)

    def add_known(self: ModelRepository, known: str, **_: object) -> StoredModel:
        return self.add(source, known)

    monkeypatch.setattr(ModelRepository, "add_known", add_known)
    vocabularies = Vocabularies(ModelRepository(tmp_path / "models"), lambda: None, structlog.get_logger())
    await vocabularies.preload("smollm2-135m")
    assert vocabularies.names == ["smollm2-135m/1"]
    with pytest.raises(ModelNotFound):
        await vocabularies.preload("unheard-of")


async def test_an_unknown_model_ends_the_start_with_the_reason(nats_server: NatsServer, tmp_path: Path) -> None:
    bus = await Bus.connect(nats_server.url, "test-1")
    await NatsLog.open(bus, "s0")
    await bus.close()
    options = ("--nats", nats_server.url, "--model", "unheard-of", "--model-repository", str(tmp_path))
    command = [sys.executable, "-m", "services.detokenizer", *options]
    run = functools.partial(subprocess.run, command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    done = await asyncio.to_thread(run)
    assert done.returncode == 2
    assert "unheard-of" in done.stderr and "Traceback" not in done.stderr
