"""What a plain client reads, message by message."""

from services.detokenizer.core.client_messages import ClientFormatter
from shared.errors import SERVER
from shared.messages.client import ClientDelta, ClientEnd, ClientError
from shared.messages.packed import pack_tokens
from shared.messages.pipeline import Delta, EndReason, ErrorBody


def delta(choice: int, start: int, stop: int, end: EndReason | None = None, error: bool = False) -> Delta:
    return Delta(
        attach=1,
        choice=choice,
        start=start,
        stop=stop,
        text="x" * (stop - start),
        token_ids=pack_tokens(range(start, stop)),
        end=end,
        error=ErrorBody("gone", SERVER) if error else None,
        num_prompt_tokens=3,
    )


def test_the_end_waits_for_the_last_choice() -> None:
    formatter = ClientFormatter()
    assert [type(message) for message in formatter.messages(delta(0, 0, 2, "length"), 2)] == [ClientDelta]
    _, end = formatter.messages(delta(1, 0, 1, "eos"), 2)
    assert isinstance(end, ClientEnd)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.total_tokens) == (3, 3, 6)
    assert [choice.finish_reason for choice in end.choices] == ["length", "stop"]


def test_an_error_is_the_last_message_whatever_other_choices_do() -> None:
    formatter = ClientFormatter()
    formatter.messages(delta(0, 0, 2), 3)
    (failed,) = formatter.messages(delta(1, 0, 0, "deadline", error=True), 3)
    assert isinstance(failed, ClientError)
    assert formatter.messages(delta(2, 0, 0, "deadline", error=True), 3) == []
    assert formatter.messages(delta(0, 2, 3, "length"), 3) == []
