"""What each path does."""

import time
from collections.abc import Callable

import msgspec

from services.gateway.config import GatewayConfig
from services.gateway.core.model_directory import model_object
from services.gateway.core.openapi import DOCS_PAGE, openapi_document
from services.gateway.generation import Generation
from services.gateway.http.exchange import Exchange
from services.gateway.http.routes import Routes
from services.gateway.metrics import GatewayMetrics
from services.gateway.pipeline import Pipeline
from services.gateway.request_endpoints import RequestEndpoints
from shared.errors import RequestError, unavailable
from shared.health import Health, health_page
from shared.micro import package_version


class Endpoints:
    """The gateway's endpoints over one pipeline. check_health: as the probes of every service see it."""

    def __init__(
        self, config: GatewayConfig, pipeline: Pipeline, metrics: GatewayMetrics, check_health: Callable[[], Health]
    ) -> None:
        self._pipeline = pipeline
        self._check_health = check_health
        self._requests = RequestEndpoints(config, pipeline, metrics)
        self._openapi = msgspec.json.encode(openapi_document(package_version()))

    @property
    def generations(self) -> set[Generation]:
        """The answers that are being given."""
        return self._requests.generations

    def add_to(self, routes: Routes) -> None:
        """Register all paths."""
        self._requests.add_to(routes)
        routes.add("GET", "/v1/models", self._models)
        routes.add("GET", "/v1/models/", self._model)
        routes.add("GET", "/version", self._version)
        routes.add("GET", "/openapi.json", self._openapi_json)
        routes.add("GET", "/docs", self._docs)
        for path in ("/live", "/ready", "/health", "/metrics"):
            routes.add("GET", path, self._probe)

    def fail_all(self, error: RequestError) -> None:
        """End every running answer with an error, because this gateway goes."""
        for generation in list(self.generations):
            generation.leave(error)

    async def _models(self, exchange: Exchange) -> None:
        cards = self._pipeline.models.cards(time.monotonic())
        if not cards:
            raise unavailable("No model is loaded yet; try again later.")
        await exchange.answer_json({"object": "list", "data": [model_object(card) for card in cards]})

    async def _model(self, exchange: Exchange) -> None:
        name = exchange.path.removeprefix("/v1/models/")
        await exchange.answer_json(model_object(self._pipeline.models.find(name, time.monotonic())))

    async def _version(self, exchange: Exchange) -> None:
        await exchange.answer_json({"version": package_version()})

    async def _openapi_json(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._openapi)

    async def _docs(self, exchange: Exchange) -> None:
        await exchange.answer(200, DOCS_PAGE, b"text/html; charset=utf-8")

    async def _probe(self, exchange: Exchange) -> None:
        page = health_page(exchange.path, self._check_health)
        await exchange.answer(page.status, page.body, page.content_type.encode("ascii"))
