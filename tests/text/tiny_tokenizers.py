"""Small tokenizers with each kind of decoder that models use."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CORPUS = [
    "The capital of France is Paris, and the capital of Italy is Rome. The END of the line.",
    "Die Hauptstadt heißt Paris; Ärger über Öl. naïve café, e\u0301 a\u0308 combining.",
    "数を数える。東京は日本の首都です。안녕하세요 세계 שלום עולם Привет, мир!",
    "👩‍👩‍👧‍👦 family 🇫🇷 flags 👍🏽 thumbs; \u200fRTL\u200e and zero\u200dwidth",
    "for index in range(10): total = total + index  # 3.14159\n\n\tdone",
]


def byte_level() -> Tokenizer:
    """Byte-level BPE as in SmolLM2, GPT-2, Llama 3 and Qwen; ids 0 to 2 are special, the last one is not."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), behavior="isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("数 x", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """SentencePiece BPE with byte fallback as in Llama 2 and Mistral."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "a", "b", "c", "e", "n", "d", "▁a", "▁b", "en", "end", "▁end", "é", "数", "E", "N", "D", "▁▁", "ND"]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *words]
    merges = [("▁", "a"), ("▁", "b"), ("e", "n"), ("en", "d"), ("▁", "end"), ("▁", "▁"), ("N", "D")]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return tokenizer


def metaspace(prepend_scheme: str) -> Tokenizer:
    """SentencePiece unigram; prepend_scheme: always, first or never."""
    pieces = [
        ("<s>", 0.0),
        ("▁", -2.0),
        ("▁▁", -2.0),
        ("▁a", -2.5),
        ("a", -2.6),
        ("b▁c", -3.0),
        ("end", -3.0),
        ("数", -4.0),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def word_piece() -> Tokenizer:
    """A decoder without a stream of its own."""
    tokens = ["[UNK]", "the", "end", "##s", "##ing", ".", "数"]
    tokenizer = Tokenizer(models.WordPiece({token: rank for rank, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return tokenizer


def no_decoder() -> Tokenizer:
    """Tokens are joined with blanks."""
    return Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2, "three": 3}, unk_token="<unk>"))


ALL = {
    "byte_level": byte_level(),
    "byte_fallback": byte_fallback(),
    "metaspace_always": metaspace("always"),
    "metaspace_never": metaspace("never"),
    "word_piece": word_piece(),
    "no_decoder": no_decoder(),
}
