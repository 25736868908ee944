"""The OpenAPI document, and a page that shows it without anything from elsewhere."""

from typing import Any

Schema = dict[str, Any]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _text(description: str = "") -> Schema:
    return {"type": "string", **({"description": description} if description else {})}


def _integer(low: int, high: int | None = None, description: str = "") -> Schema:
    schema: Schema = {"type": "integer", "minimum": low}
    if high is not None:
        schema["maximum"] = high
    return {**schema, **({"description": description} if description else {})}


def _number(low: float, high: float, description: str = "") -> Schema:
    schema: Schema = {"type": "number", "minimum": low, "maximum": high}
    return {**schema, **({"description": description} if description else {})}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "default": False, "description": description}


def _list(items: Schema, **more: object) -> Schema:
    return {"type": "array", "items": items, **more}


def _object(properties: Schema, required: list[str] | None = None) -> Schema:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


TOKEN_ID = _integer(0)
TOKEN_IDS = _list(TOKEN_ID)

SAMPLING: Schema = {
    "model": _text("one of /v1/models"),
    "max_tokens": _integer(1, description="completions: 16 by default; chat: what is left of the context"),
    "min_tokens": _integer(0),
    "n": _integer(1, 128, "choices per prompt"),
    "temperature": _number(0, 2),
    "top_p": _number(0, 1, "above 0"),
    "top_k": _integer(-1, description="-1 and 0: all tokens"),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0.01, 100),
    "seed": _integer(-(2**63), 2**63 - 1, "the same seed draws the same tokens"),
    "stop": {"oneOf": [_text(), _list(_text(), maxItems=4)]},
    "stop_token_ids": TOKEN_IDS,
    "allowed_token_ids": TOKEN_IDS,
    "bad_words": _list(_text()),
    "logit_bias": {"type": "object", "additionalProperties": _number(-100, 100)},
    "ignore_eos": _flag("go on after an end-of-sequence token"),
    "include_stop_str_in_output": _flag("keep the stop string in the text"),
    "skip_special_tokens": {"type": "boolean", "default": True},
    "stream": _flag("answer with server-sent events, usually one per token"),
    "stream_options": _object({"include_usage": _flag("one more event with the usage")}),
    "return_token_ids": _flag("add token_ids to every choice, and prompt_token_ids"),
    "cache_salt": _text("keeps cached prefixes apart"),
    "add_special_tokens": {"type": "boolean", "description": "completions: true by default; chat: false"},
    "priority": _integer(-(2**31), 2**31 - 1, "lower is served first"),
}

PROMPT: Schema = {"oneOf": [_text(), _list(_text()), TOKEN_IDS, _list(TOKEN_IDS)]}
MESSAGE = _object(
    {
        "role": {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"oneOf": [_text(), _list(_object({"type": {"const": "text"}, "text": _text()}))]},
        "name": _text(),
    },
    ["role", "content"],
)
USAGE = _object(
    {
        "prompt_tokens": _integer(0),
        "completion_tokens": _integer(0),
        "total_tokens": _integer(0),
    }
)
FINISH_REASON: Schema = {"type": ["string", "null"], "enum": ["stop", "length", "abort", None]}


def _answer(choice: Schema) -> Schema:
    extras = {"index": _integer(0), "finish_reason": FINISH_REASON, "logprobs": {"type": ["object", "null"]}}
    extras |= {"stop_reason": {"type": ["string", "integer", "null"]}, "token_ids": TOKEN_IDS}
    return _object(
        {
            "id": _text(),
            "object": _text(),
            "created": _integer(0),
            "model": _text(),
            "choices": _list(_object({**choice, **extras})),
            "usage": _ref("Usage"),
        }
    )


SCHEMAS: Schema = {
    "CompletionRequest": _object(
        {**SAMPLING, "prompt": PROMPT, "logprobs": _integer(0, 5, "alternatives per token")}, ["model", "prompt"]
    ),
    "ChatCompletionRequest": _object(
        {
            **SAMPLING,
            "messages": _list(_ref("Message"), minItems=1),
            "max_completion_tokens": _integer(1),
            "logprobs": _flag("log-probabilities of the tokens"),
            "top_logprobs": _integer(0, 20, "alternatives per token"),
            "add_generation_prompt": {"type": "boolean", "default": True},
            "chat_template_kwargs": {"type": "object", "description": "values for the chat template"},
        },
        ["model", "messages"],
    ),
    "Message": MESSAGE,
    "Completion": _answer({"text": _text()}),
    "ChatCompletion": _answer({"message": _object({"role": _text(), "content": _text()})}),
    "Usage": USAGE,
    "Model": _object(
        {"id": _text(), "object": _text(), "created": _integer(0), "owned_by": _text(), "max_model_len": _integer(1)}
    ),
    "Models": _object({"object": _text(), "data": _list(_ref("Model"))}),
    "Error": _object(
        {
            "error": _object(
                {
                    "message": _text(),
                    "type": _text(),
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
                ["message", "type", "param", "code"],
            )
        },
        ["error"],
    ),
}

HEADERS: dict[str, tuple[str, Schema]] = {
    "Idempotency-Key": (
        "all requests with the same key and the same Authorization are one request, which is kept for 60 s without "
        "readers; its answer can be had again, and joined while it runs",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
    "X-Tokenbus-Resumable": (
        "1: the request goes on for 60 s when its client has gone; GET /v1/requests/{id}/stream reads on",
        {"type": "string", "enum": ["0", "1"]},
    ),
    "X-Request-Timeout": (
        "seconds until the request is ended; at most the server's own limit",
        {"type": "number", "exclusiveMinimum": 0},
    ),
    "Last-Event-ID": (
        "the id of the last event that the client has: the number of tokens of every choice, such as 12-9-10",
        {"type": "string", "pattern": "^[0-9]{1,10}(-[0-9]{1,10})*$"},
    ),
}
ERRORS = {
    "400": "the request is wrong; param names where",
    "404": "no such model or request",
    "408": "the request arrived too slowly",
    "409": "the answer to this idempotency key is no longer kept",
    "413": "the body is too large",
    "415": "the body is not declared as JSON",
    "422": "the idempotency key belongs to a request with another body",
    "429": "too much at once; try again after Retry-After seconds",
    "431": "the headers are too large",
    "503": "try again after Retry-After seconds",
    "504": "the deadline passed before the first token",
}


def _json_of(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _error_answers() -> Schema:
    return {status: _error(text) for status, text in ERRORS.items()}


def _error(text: str) -> Schema:
    return {"description": text, "content": _json_of(_ref("Error"))}


def _header(name: str) -> Schema:
    text, schema = HEADERS[name]
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}


def _generating(name: str, summary: str, answer: str) -> Schema:
    whole = {
        "description": "the answer; with stream, events whose data are parts of it, then [DONE]",
        "content": {**_json_of(_ref(answer)), "text/event-stream": {"schema": _text()}},
    }
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "parameters": [_header(name) for name in HEADERS],
            "requestBody": {"required": True, "content": _json_of(_ref(f"{answer}Request"))},
            "responses": {"200": whole, **_error_answers()},
        }
    }


def _reading(name: str, summary: str, schema: Schema, **more: object) -> Schema:
    answer = {"description": summary, "content": _json_of(schema)}
    return {"get": {"operationId": name, "summary": summary, "responses": {"200": answer}, **more}}


def _request_stream(request_id: Schema) -> Schema:
    events = {"description": "events as of the first answer", "content": {"text/event-stream": {"schema": _text()}}}
    gone = _error("it has ended, and its text is no longer kept")
    return {
        "get": {
            "operationId": "readRequest",
            "summary": "Read a request's text, from any position on",
            "parameters": [request_id, _header("Last-Event-ID")],
            "responses": {"200": events, "400": _error(ERRORS["400"]), "404": _error(ERRORS["404"]), "410": gone},
        }
    }


def _request(request_id: Schema) -> Schema:
    ended = _object({"id": _text(), "object": {"const": "request"}, "cancelled": {"const": True}})
    answer = {"description": "the end is in the log", "content": _json_of(ended)}
    return {
        "delete": {
            "operationId": "cancelRequest",
            "summary": "End a request; harmless when repeated",
            "parameters": [request_id],
            "responses": {"200": answer, "404": _error("no id of a request"), "503": _error(ERRORS["503"])},
        }
    }


def openapi_document(version: str) -> Schema:
    """The whole document as plain values."""
    anything: Schema = {"type": "object"}
    request_id = {"name": "id", "in": "path", "required": True, "description": "id of an answer", "schema": _text()}
    model_id = {"name": "model", "in": "path", "required": True, "schema": _text()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tokenbus", "version": version, "description": "OpenAI-compatible inference over NATS."},
        "paths": {
            "/v1/completions": _generating("createCompletion", "Continue a text", "Completion"),
            "/v1/chat/completions": _generating("createChatCompletion", "Answer a conversation", "ChatCompletion"),
            "/v1/requests/{id}": _request(request_id),
            "/v1/requests/{id}/stream": _request_stream(request_id),
            "/v1/models": _reading("listModels", "All models", _ref("Models")),
            "/v1/models/{model}": _reading("getModel", "One model", _ref("Model"), parameters=[model_id]),
            "/version": _reading("getVersion", "The version of the server", _object({"version": _text()})),
            "/live": _reading("getLive", "Whether the process turns", anything),
            "/ready": _reading("getReady", "Whether requests can be served", anything),
            "/health": _reading("getHealth", "The same with details", anything),
            "/metrics": {
                "get": {
                    "operationId": "getMetrics",
                    "summary": "Metrics of this gateway, in Prometheus' text format",
                    "responses": {"200": {"description": "metrics", "content": {"text/plain": {"schema": _text()}}}},
                }
            },
        },
        "components": {"schemas": SCHEMAS},
    }


DOCS_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tokenbus API</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 14px/1.4 ui-monospace, monospace } pre { background: #8881; padding: 1rem; overflow: auto }
summary { cursor: pointer; padding: .3rem 0 }
</style>
<h1>Tokenbus API</h1>
<p>OpenAI's API; the whole description is <a href="openapi.json">openapi.json</a>.</p>
<div id="paths"></div>
<h2>Schemas</h2>
<div id="schemas"></div>
<script>
function entry(parent, title, value) {
  const details = document.createElement("details"), summary = document.createElement("summary");
  const code = document.createElement("code"), pre = document.createElement("pre");
  code.textContent = title; pre.textContent = JSON.stringify(value, null, 2);
  summary.append(code); details.append(summary, pre); parent.append(details);
}
fetch("openapi.json").then(answer => answer.json()).then(api => {
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, what] of Object.entries(methods))
      entry(document.getElementById("paths"), method.toUpperCase() + " " + path + "  " + what.summary, what);
  for (const [name, schema] of Object.entries(api.components.schemas))
    entry(document.getElementById("schemas"), name, schema);
});
</script>
</html>
"""
