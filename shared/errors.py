"""Errors that reach a client, in OpenAI's shape: message, type, param, code; and the HTTP status they map to."""

from shared.messages.pipeline import ErrorBody, Refused

INVALID_REQUEST = "invalid_request_error"
PERMISSION = "permission_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"
UNAVAILABLE = "service_unavailable_error"

TYPE_OF_STATUS = {403: PERMISSION, 429: RATE_LIMIT, 503: UNAVAILABLE}


def error_type(status: int) -> str:
    """OpenAI's error type for an HTTP status."""
    if status in TYPE_OF_STATUS:
        return TYPE_OF_STATUS[status]
    return INVALID_REQUEST if status < 500 else SERVER


class RequestError(Exception):
    """A request that cannot be served. The message is for the client and names what to change.

    param: path of the parameter at fault, such as `messages[0].role`. code: machine-readable reason.
    retry_after_s: after how many seconds a retry makes sense; set with 429 and 503.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        type: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.type = type or error_type(status)
        self.retry_after_s = retry_after_s

    def body(self) -> ErrorBody:
        """OpenAI's error object."""
        return ErrorBody(message=self.message, type=self.type, param=self.param, code=self.code)

    def refused(self) -> Refused:
        """The error as an answer on NATS."""
        return Refused(error=self.body(), status=self.status, retry_after_s=self.retry_after_s)

    @classmethod
    def from_refused(cls, refused: Refused) -> "RequestError":
        """The error that a refusal on NATS stands for."""
        error = refused.error
        return cls(error.message, error.param, error.code, refused.status, error.type, refused.retry_after_s)


def invalid(message: str, param: str | None, code: str | None = None) -> RequestError:
    """400: the request itself is wrong."""
    return RequestError(message, param, code)


def unsupported(param: str, what: str) -> RequestError:
    """400: well-formed, but it demands something this server cannot do."""
    return RequestError(f"{what} is not supported.", param, "unsupported_parameter")


def model_not_found(name: str) -> RequestError:
    """404: one body for a model that is absent and for one that this key may not use."""
    shown = f"`{name}`" if len(name) <= 128 and name.isprintable() else f"with a name of {len(name)} characters"
    return RequestError(
        f"The model {shown} does not exist or you do not have access to it.", "model", "model_not_found", 404
    )


def context_length_exceeded(num_prompt_tokens: int, max_model_len: int, param: str) -> RequestError:
    """400: the prompt leaves no room for a single output token."""
    return RequestError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt has {num_prompt_tokens} "
        "tokens, which leaves no room for an answer. Please reduce the length of the prompt.",
        param,
        "context_length_exceeded",
    )


def too_large(message: str, param: str | None = None) -> RequestError:
    """413: more bytes than any component accepts."""
    return RequestError(message, param, "request_too_large", 413)


def unavailable(message: str, retry_after_s: float = 1.0, code: str | None = None) -> RequestError:
    """503: nothing is wrong with the request; it may be sent again."""
    return RequestError(message, None, code, 503, retry_after_s=retry_after_s)


def timed_out(message: str) -> RequestError:
    """504: the deadline passed before the first token."""
    return RequestError(message, None, "deadline_exceeded", 504)


def server_error(message: str, code: str | None = None) -> RequestError:
    """500: our fault."""
    return RequestError(message, None, code, 500)
