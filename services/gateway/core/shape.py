"""How an HTTP answer looks: what all its parts repeat, and which parts its client wants."""

import msgspec


class AnswerShape(msgspec.Struct, frozen=True, kw_only=True):
    """id: cmpl- or chatcmpl- and the id of the first prompt's request. created: Unix seconds. n: choices per prompt."""

    id: str
    chat: bool
    created: int
    model: str
    num_prompts: int = 1
    n: int = 1
    stream: bool = False
    has_logprobs: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    @property
    def num_choices(self) -> int:
        """Choices of the answer, over all prompts."""
        return self.num_prompts * self.n


def answer_id(request_id: str, chat: bool) -> str:
    """OpenAI's form of a request id."""
    return f"chatcmpl-{request_id}" if chat else f"cmpl-{request_id}"
