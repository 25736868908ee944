"""Options of the gateway."""

from typing import Annotated

import msgspec

from services.gateway.http.limits import Limits
from shared.config import ServiceConfig


class GatewayConfig(ServiceConfig, kw_only=True, frozen=True):
    """What `tokenbus gateway` takes beside the common options."""

    host: Annotated[str, msgspec.Meta(description="address to serve HTTP on")] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(description="its port; 0: any free one (logged)", ge=0, le=65535)] = 8000
    listen_fd: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0)], ...],
        msgspec.Meta(
            description="file descriptors of sockets that listen already, shared with other gateways; "
            "none: listen on host and port"
        ),
    ] = ()
    request_timeout_s: Annotated[
        float, msgspec.Meta(description="seconds after which a request is ended with reason deadline", gt=0)
    ] = 600.0
    seed: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        msgspec.Meta(
            description="draws the seeds of requests without one, in their order, so that a run can be "
            "repeated; none: new ones each time"
        ),
    ] = None
    canary_interval_s: Annotated[
        float,
        msgspec.Meta(
            description="seconds without text for any client after which the gateway asks the pipeline for one token "
            "itself, to know whether it works; 0: never",
            ge=0,
        ),
    ] = 5.0
    max_body_bytes: Annotated[int, msgspec.Meta(description="largest request body, packed and unpacked", ge=1024)] = (
        8 * 1024 * 1024
    )
    max_header_bytes: Annotated[int, msgspec.Meta(description="largest sum of all headers of a request", ge=1024)] = (
        16 * 1024
    )
    header_timeout_s: Annotated[
        float, msgspec.Meta(description="seconds in which the headers of a request must arrive", gt=0)
    ] = 10.0
    body_timeout_s: Annotated[
        float, msgspec.Meta(description="seconds in which the body of a request must arrive", gt=0)
    ] = 30.0
    keep_alive_s: Annotated[
        float, msgspec.Meta(description="seconds after which an idle connection is closed", gt=0)
    ] = 75.0
    access_log: Annotated[
        bool,
        msgspec.Meta(description="log every answered request with its numbers of tokens, not only what failed"),
    ] = False

    @property
    def limits(self) -> Limits:
        """Bounds of each connection."""
        return Limits(
            max_header_bytes=self.max_header_bytes,
            max_body_bytes=self.max_body_bytes,
            header_timeout_s=self.header_timeout_s,
            body_timeout_s=self.body_timeout_s,
            keep_alive_s=self.keep_alive_s,
        )
