"""Headers that keep, find and limit requests; and the ids that follow from keys."""

import pytest

from services.gateway.core.request_headers import (
    KEEP_S,
    Wishes,
    check_num_positions,
    id_in_path,
    keyed_request_id,
    read_wishes,
)
from shared.errors import RequestError


def wishes(**headers: str) -> Wishes:
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return read_wishes(named.get, 600.0)


def test_without_headers_nothing_is_kept() -> None:
    assert wishes() == Wishes() == wishes(x_tokenbus_resumable="0")


def test_what_is_kept() -> None:
    assert wishes(x_tokenbus_resumable="1") == Wishes(keep_s=KEEP_S)
    assert wishes(idempotency_key="a" * 255, last_event_id="12-9-10") == Wishes(
        key="a" * 255, keep_s=KEEP_S, positions=(12, 9, 10)
    )


@pytest.mark.parametrize(("text", "timeout_s"), [("5", 5.0), ("0.25", 0.25), (".5", 0.5), ("600", 600.0)])
def test_timeouts(text: str, timeout_s: float) -> None:
    assert wishes(x_request_timeout=text).timeout_s == timeout_s


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("Idempotency-Key", value) for value in ("", "a" * 256, "with space", "tab\there", "\xe9", "\x7f")),
        *(("X-Tokenbus-Resumable", value) for value in ("", "yes", "2", "1 ")),
        *(
            ("X-Request-Timeout", value)
            for value in ("", "0", "-1", "601", "1e2", "nan", "inf", "5s", "٣", "0.0", "1_0")
        ),
        *(("Last-Event-ID", value) for value in ("", "-1", "1-", "1--2", "a", "1.5", "99999999999", "4294967296", "٣")),
    ],
)
def test_malformed_ones_are_named(name: str, value: str) -> None:
    with pytest.raises(RequestError) as refused:
        wishes(**{"idempotency_key": "key", name.lower().replace("-", "_"): value})
    assert (refused.value.status, refused.value.param) == (400, name)
    assert name in refused.value.message


def test_a_position_needs_a_request() -> None:
    with pytest.raises(RequestError) as refused:
        wishes(last_event_id="12")
    assert (refused.value.status, refused.value.param) == (400, "Last-Event-ID")


def test_one_position_for_each_choice() -> None:
    check_num_positions((1, 2), 2)
    with pytest.raises(RequestError) as refused:
        check_num_positions((1, 2), 3)
    assert (refused.value.status, refused.value.param) == (400, "Last-Event-ID")


def test_ids_of_keys_differ_by_key_and_holder() -> None:
    ids = {keyed_request_id(holder, key) for holder in ("", "Bearer a", "Bearer b\xff") for key in ("k", "k2")}
    assert len(ids) == 6
    assert all(id_in_path(request_id) == request_id for request_id in ids)
    assert keyed_request_id("a", "b") == keyed_request_id("a", "b")


def test_ids_in_paths() -> None:
    request_id = "0123456789abcdef" * 2
    for prefix in ("", "cmpl-", "chatcmpl-"):
        assert id_in_path(prefix + request_id) == request_id
    for text in (
        "",
        "cmpl-",
        request_id[1:],
        request_id + "0",
        "x" + request_id,
        request_id.upper(),
        request_id + "\n",
    ):
        with pytest.raises(RequestError) as refused:
            id_in_path(text)
        assert (refused.value.status, refused.value.code) == (404, "request_not_found")
