"""One request from its message to its place in the log."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from structlog.typing import FilteringBoundLogger

from services.tokenizer.config import TokenizerConfig
from services.tokenizer.core.admission import LOG_FULL_RETRY_S, ShardView
from services.tokenizer.core.prepare import prepare
from services.tokenizer.core.served_model import ServedModel
from services.tokenizer.metrics import TokenizerMetrics
from shared.errors import RequestError, server_error, too_large, unavailable
from shared.log.port import Log, LogFull, LogUnavailable
from shared.messages.codec import encode
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Accepted, GenerateRequest, Refused, Request
from shared.params import Params
from shared.refusals import LOG_STUCK, TOO_MANY_REQUESTS

APPEND_HORIZON_S = 60.0
STUCK_LOG_S = 10.0  # longer than a restart of nats-server or an election takes
RECORD_HEADER_BYTES = 512
JSON_BYTES_PER_TOKEN = 8


class Intake:
    """Prepares requests and appends them to the log. max_payload: a function that gives the bus's limit in bytes."""

    def __init__(
        self,
        config: TokenizerConfig,
        models: Mapping[str, ServedModel],
        log: Log,
        view: ShardView,
        max_payload: Callable[[], int],
        metrics: TokenizerMetrics,
        logger: FilteringBoundLogger,
    ) -> None:
        self._config = config
        self._models = models
        self._log = log
        self._view = view
        self._max_payload = max_payload
        self._metrics = metrics
        self._logger = logger
        self._threads = ThreadPoolExecutor(config.num_encoding_threads, "encode")
        self._running: dict[str, asyncio.Future[Accepted | Refused]] = {}
        self._appending_since: dict[str, float] = {}

    @property
    def num_in_flight(self) -> int:
        """Requests at work."""
        return len(self._running)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, generate: GenerateRequest, request_id: str, num_bytes: int) -> Accepted | Refused:
        """What becomes of a request; a retry that comes while the first is at work gets the first one's answer.

        num_bytes: size of the message; long ones are encoded in a thread.
        """
        running = self._running.get(request_id)
        if running is not None:
            self._metrics.retries.inc()
            return await asyncio.shield(running)
        outcome: asyncio.Future[Accepted | Refused] = asyncio.get_running_loop().create_future()
        self._running[request_id] = outcome
        self._metrics.in_flight.set(len(self._running))
        answer: Accepted | Refused = unavailable("The tokenizer was stopped.").refused()
        try:
            answer = await self._accept(generate, request_id, num_bytes)
            self._metrics.requests.labels("accepted").inc()
        except RequestError as error:
            answer = self._refused(error)
        except Exception:
            self._logger.exception("request failed", request_id=request_id)
            answer = self._refused(server_error("The request could not be prepared.", "tokenizer_failed"))
        finally:
            del self._running[request_id]
            self._metrics.in_flight.set(len(self._running))
            outcome.set_result(answer)
        return answer

    def _refused(self, error: RequestError) -> Refused:
        self._metrics.requests.labels(error.code or error.type).inc()
        return error.refused()

    async def _accept(self, generate: GenerateRequest, request_id: str, num_bytes: int) -> Accepted:
        config = self._config
        loop = asyncio.get_running_loop()
        if self.num_in_flight > config.max_concurrent_requests:
            raise unavailable("Too many requests at once.", code=TOO_MANY_REQUESTS)
        self._check_room(0)
        begun = time.perf_counter()
        if num_bytes <= config.inline_bytes:
            request, params = self._prepare(generate, request_id)
        else:
            request, params = await loop.run_in_executor(self._threads, self._prepare, generate, request_id)
        self._metrics.prepare_s.observe(time.perf_counter() - begun)
        self._metrics.unknown_params.inc(len(params.unknown))
        return await self._append(request, params)

    def _check_room(self, num_prompt_tokens: int) -> None:
        """Raises RequestError if the shard cannot take a request now; 0 tokens while they are not counted yet."""
        now_s = asyncio.get_running_loop().time()
        config = self._config
        # in the order of their begin; nats-server answers no append while its disk is full
        if now_s - next(iter(self._appending_since.values()), now_s) > STUCK_LOG_S:
            raise unavailable("The log stores nothing at present.", LOG_FULL_RETRY_S, LOG_STUCK)
        reason = self._view.refusal(now_s, config.queue_limits, config.leader_timeout_s, num_prompt_tokens)
        if reason is not None:
            raise reason

    def _prepare(self, generate: GenerateRequest, request_id: str) -> tuple[Request, Params]:
        return prepare(
            generate,
            self._models,
            request_id=request_id,
            worker_max_model_len=self._view.max_model_len,
            now_s=time.time(),
        )

    async def _append(self, request: Request, params: Params) -> Accepted:
        data = encode(request)
        limit = self._max_payload() - RECORD_HEADER_BYTES
        if len(data) > limit:
            raise too_large(f"The request has {len(data)} bytes when tokenized; at most {limit} are accepted.")
        token_ids = unpack_tokens(request.prompt_token_ids)
        if params.return_token_ids and len(token_ids) * JSON_BYTES_PER_TOKEN > limit:
            raise too_large("The prompt is too long for return_token_ids.", "return_token_ids")
        self._check_room(len(token_ids))
        self._view.on_accepting(len(token_ids))
        self._appending_since[request.request_id] = asyncio.get_running_loop().time()
        try:
            await self._log.append("req", data, f"req-{request.request_id}", APPEND_HORIZON_S)
        except LogFull:
            raise unavailable("The log is full.", LOG_FULL_RETRY_S, "log_full") from None
        except LogUnavailable:
            raise unavailable("The log cannot be reached.", code="log_unavailable") from None
        finally:
            del self._appending_since[request.request_id]
        self._metrics.prompt_tokens.observe(len(token_ids))
        self._logger.debug(
            "accepted",
            request_id=request.request_id,
            num_prompt_tokens=len(token_ids),
            traceparent=request.traceparent,
        )
        return Accepted(
            request_id=request.request_id,
            num_prompt_tokens=len(token_ids),
            shard=self._config.shard,
            prompt_token_ids=token_ids.tolist() if params.return_token_ids else None,
        )
