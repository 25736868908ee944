"""The tokenizer as a process of its own, with a model from the repository."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.tokenizer.config import TokenizerConfig
from services.tokenizer.core.served_model import ModelLoadError, load_served_model
from services.tokenizer.service import load_models
from shared import subjects
from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.messages.codec import decoder, encode
from shared.messages.control import LeaderHeartbeat, ShardLoad, TokenizerHeartbeat
from shared.params import validate_messages
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from shared.service import StartError
from tests.servers import NatsServer
from tests.service_process import command, start
from tests.stored_models import store_tiny_model
from tests.tiny_models import make_tiny_model, make_tiny_tokenizer
from tests.waiting import LIMIT_S, until

ASK: dict[str, Any] = {
    "v": 1,
    "model": "small",
    "messages": [{"role": "user", "content": "hi"}],
    "params": {"max_tokens": 3},
    "attach": False,
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one tiny random model, "tiny"."""
    folder = tmp_path_factory.mktemp("models")
    store_tiny_model(folder, "LlamaForCausalLM")
    return folder / "models"


async def test_a_process_serves_chat_under_its_served_name_and_exits_0(
    nats_server: NatsServer, repository: Path, tmp_path: Path
) -> None:
    options = ("--nats", nats_server.url, "--served-model-name", "small", "alias", "--max-model-len", "100")
    process = start(command("tokenizer", repository, *options), tmp_path / "log")
    bus = await Bus.connect(nats_server.url, "client-1")
    try:
        await NatsLog.open(bus, "s0")
        heard: list[TokenizerHeartbeat] = []
        decode = decoder(TokenizerHeartbeat)
        await bus.subscribe(subjects.TOKENIZER_HEARTBEAT, lambda _s, _r, data, _h: heard.append(decode(data)))
        await until(lambda: heard, "the first heartbeat")
        card = heard[0].models[0]
        assert (card.name, card.root, card.version, card.max_model_len) == ("small", "tiny", "1", 100)
        assert [(each.name, each.shown_as) for each in heard[0].models] == [("small", "small"), ("alias", "small")]
        assert card.created <= time.time()
        heartbeat = LeaderHeartbeat(shard="s0", leader="l", takeover=1, load=ShardLoad(num_workers=1))
        bus.publish(subjects.leader_heartbeat("s0"), encode(heartbeat))
        answer = msgspec.json.decode(await bus.request(subjects.INFER, msgspec.json.encode(ASK), 10))
        assert answer["kind"] == "accepted", answer
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, LIMIT_S) == 0, (tmp_path / "log").read_text()
    finally:
        await bus.close()
        if process.poll() is None:
            process.kill()
            process.wait()


def test_an_unknown_model_or_limit_is_an_error_for_the_operator(repository: Path) -> None:
    for options in ({"model": "absent"}, {"model_version": "9"}, {"max_model_len": 10**9}):
        config = TokenizerConfig(**{"model": "tiny", "model_repository": str(repository), **options})  # type: ignore[arg-type]
        with pytest.raises(StartError):
            load_models(config)


def test_a_model_repository_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=f"--model-repository: {tmp_path}/file/models: Not a directory"):
        load_models(TokenizerConfig(model_repository=str(tmp_path / "file/models")))


def test_a_known_model_is_added_if_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect_path(make_tiny_model(tmp_path / "source", "LlamaForCausalLM"))

    def add_known(self: ModelRepository, known: str, **_: object) -> StoredModel:
        return self.add(source, known)

    monkeypatch.setattr(ModelRepository, "add_known", add_known)
    models = load_models(TokenizerConfig(model="smollm2-135m", model_repository=str(tmp_path / "models")))
    assert {name: model.version for name, model in models.items()} == {"smollm2-135m": "1"}


def test_a_stored_model_encodes_as_its_tokenizer_does(repository: Path) -> None:
    stored = ModelRepository(repository).open("tiny")
    model = load_served_model(stored, "tiny", None)
    assert model.max_model_len == stored.config.max_position_embeddings
    assert model.context_length(10) == 10 and model.context_length(0) == model.max_model_len
    tokenizer = make_tiny_tokenizer()
    text = "The capital of France"
    assert model.encoder.encode_text(text, True, 1000) == tokenizer.encode(text).ids
    assert validate_messages(ASK["messages"])


def test_a_broken_chat_template_is_refused_at_the_start(repository: Path) -> None:
    stored = ModelRepository(repository).open("tiny")
    broken = type(stored)(stored.path, stored.manifest, "{% if %}")
    with pytest.raises(ModelLoadError, match="chat template"):
        load_served_model(broken, "tiny", None)
