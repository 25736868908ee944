"""How a request is sampled, once every default is resolved and every bound is checked."""

import msgspec


class Sampling(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Resolved sampling parameters, with OpenAI's and vLLM's names. Part of the logged Request.

    eos_token_ids: ids that end a sequence unless ignore_eos; empty when the request ignores them.
    seed: always set (given or drawn at admission), so that a retry or a migration samples the same way.
    logprobs: number of alternatives a row carries beside the chosen token; None for no log-probabilities at all.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    bad_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether sampling needs the ids of the whole sequence so far."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0
