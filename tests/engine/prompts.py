"""Thirty prompts of different length, language and kind."""

_STORY = (
    "Once upon a time there was a lighthouse keeper who wrote down every ship that passed. On Mondays the ships "
    "carried grain, on Tuesdays salt, on Wednesdays oranges from the south. "
)


def _chat(text: str, system: str = "You are a helpful assistant.") -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = [
    _chat("What is the capital of France?"),
    _chat("What is the capital of Italy?"),
    _chat("Name three colours of the rainbow."),
    _chat("Tell me a short joke about a cat."),
    _chat("Wie heißt die Hauptstadt von Österreich?"),
    _chat("Quelle est la couleur du ciel quand il pleut ?"),
    _chat("¿Cuántos días tiene una semana?"),
    _chat("Как называется столица России?"),
    _chat("日本の首都はどこですか。"),
    _chat("中国最长的河流是哪一条？"),
    _chat("한국의 수도는 어디입니까?"),
    _chat("ما هي عاصمة مصر؟"),
    _chat("Ποια είναι η πρωτεύουσα της Ελλάδας;"),
    _chat("भारत की राजधानी क्या है?"),
    _chat("Explain what a hash table is.", system="Answer like a pirate 🏴‍☠️."),
    _chat("Write a haiku about the sea 🌊 and the moon 🌙."),
    _chat("Summarise this text in one sentence: " + _STORY * 2),
    "A",
    "The",
    "Hello",
    "1, 2, 3, 4, 5,",
    "def fibonacci(n):\n    ",
    "SELECT name, COUNT(*) FROM visitors WHERE ",
    '{"name": "Ada", "born": 1815, "languages": [',
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Water boils at a temperature of",
    "In the year 1969, the first human being to walk on the Moon was",
    _STORY,
    _STORY * 6 + "On Thursdays the ships carried",
    _STORY * 14 + "On Fridays, which the keeper liked best, the ships carried",
]
