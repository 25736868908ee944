"""Conversations in ShareGPT's format: a JSON list of {"conversations": [{"from": "human", "value": ...}, ...]}."""

import random
from pathlib import Path

import msgspec

from bench.core.plan import PlannedRequest
from bench.datasets.errors import DatasetError
from bench.prompts import PromptMaker

MIN_TOKENS = 4  # as vLLM: shorter ones are mostly damaged
MAX_INPUT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048


class _Turn(msgspec.Struct):
    value: str = ""


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] = []


def sharegpt_requests(
    path: Path, num: int, output_len: int | None, shuffle: bool, prompts: PromptMaker, seed: int
) -> list[PlannedRequest]:
    """The first turn of each conversation as prompt, the second one's length as that of the answer, or output_len.

    Conversations that are too short or too long are passed over, as vLLM does, and those that remain are used again if
    there are fewer than num. Raises DatasetError.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[_Conversation])
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise DatasetError(f"{path} is not in ShareGPT's format: {error}") from None
    pairs = [
        (each.conversations[0].value, each.conversations[1].value) for each in found if len(each.conversations) > 1
    ]
    if shuffle:
        random.Random(seed).shuffle(pairs)
    requests: list[PlannedRequest] = []
    for question, answer in pairs:
        if len(requests) == num:
            break
        prompt = prompts.of_text(question)
        num_out = output_len or prompts.of_text(answer).num_tokens
        is_sound = MIN_TOKENS <= prompt.num_tokens <= MAX_INPUT_TOKENS and num_out >= MIN_TOKENS
        if is_sound and prompt.num_tokens + num_out <= MAX_TOTAL_TOKENS:
            requests.append(PlannedRequest(prompt, num_out))
    if not requests:
        raise DatasetError(f"{path} has no conversation of {MIN_TOKENS} to {MAX_INPUT_TOKENS} tokens")
    return [requests[index % len(requests)] for index in range(num)]
