"""Derived seeds (rules 12 and 16) and the shape of errors."""

import msgspec
import pytest

from shared.errors import RequestError, context_length_exceeded, model_not_found, too_large, unavailable
from shared.messages.pipeline import Refused
from shared.sampling_seed import choice_seed, request_seed


def test_rule_16_each_choice_has_a_seed_of_its_own_that_follows_from_the_requests() -> None:
    seeds = [choice_seed(seed, choice) for seed in (0, -1, 7, 2**63 - 1, -(2**63)) for choice in range(16)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert choice_seed(7, 3) == choice_seed(7, 3)
    assert choice_seed(1, 0) == 6560810717159552824


def test_rule_12_a_retry_draws_the_same_seed() -> None:
    assert request_seed("ab" * 16) == request_seed("ab" * 16) != request_seed("ac" * 16)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("x", "n"), 400, "invalid_request_error", None),
        (RequestError("x", status=401, code="invalid_api_key"), 401, "invalid_request_error", "invalid_api_key"),
        (RequestError("x", status=403), 403, "permission_error", None),
        (model_not_found("nope"), 404, "invalid_request_error", "model_not_found"),
        (too_large("x"), 413, "invalid_request_error", "request_too_large"),
        (RequestError("x", status=429), 429, "rate_limit_error", None),
        (RequestError("x", status=500), 500, "server_error", None),
        (unavailable("x", 2.0), 503, "service_unavailable_error", None),
        (context_length_exceeded(10, 10, "prompt"), 400, "invalid_request_error", "context_length_exceeded"),
    ],
)
def test_errors_have_openais_four_keys_and_survive_the_wire(
    error: RequestError, status: int, kind: str, code: str | None
) -> None:
    body = msgspec.to_builtins(error.body())
    assert set(body) == {"message", "type", "param", "code"}
    assert (error.status, body["type"], body["code"]) == (status, kind, code)
    back = RequestError.from_refused(msgspec.json.decode(msgspec.json.encode(error.refused()), type=Refused))
    assert (back.body(), back.status, back.retry_after_s) == (error.body(), status, error.retry_after_s)


@pytest.mark.parametrize("name", ["../x", "a\x00b", "x" * 10_240])
def test_odd_model_names_are_not_echoed_at_length(name: str) -> None:
    error = model_not_found(name)
    assert error.status == 404 and len(error.message) < 250 and "\x00" not in error.message
    assert name in error.message or f"with a name of {len(name)} characters" in error.message
