"""The default model, from its GGUF file: tokenizer, weights and their row order are right."""

from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.repository.export import export_model
from shared.repository.weights import iter_weights
from tests.repository.gguf_files import gguf_name, permute
from tests.stored_models import smollm2

TEXTS = [
    "The capital of France is Paris.",
    "Die Straße heißt 12345-mal „Grüße“; it's they'll DON'T 3.14159",
    "Чай горячий, снег холодный. Ελληνικά και עברית وعربي",
    "数を数える。 안녕하세요 세계! 你好，世界",
    "def f(x):\n    return x ** 2  # squared\n\n\n\tdone",
    "👩‍👩‍👧 e\u0301 \u200b <|im_start|>user\n<|im_end|>",
    " leading and trailing  ",
]


def test_what_is_stored() -> None:
    model = smollm2()
    assert (model.eos_token_ids, model.eos_token) == ((2,), "<|im_end|>")
    assert (model.bos_token_id, model.bos_token, model.add_bos_token) == (1, "<|im_start|>", False)
    assert model.chat_template is not None
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (30, 576, 64)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert (config.rms_norm_eps, config.rope_theta, config.max_position_embeddings) == (1e-5, 100000.0, 8192)
    assert config.tie_word_embeddings


def test_tokenizer_encodes_as_the_original_does() -> None:
    ours = Tokenizer.from_file(str(smollm2().tokenizer_file))
    original = Tokenizer.from_str(ours.to_str())
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    original.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    for text in [*TEXTS, "½ ٣٤ Ⅳ 7"]:
        assert ours.encode(text).ids == original.encode(text).ids
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_tokenizer_agrees_with_transformers() -> None:
    model = smollm2()
    ours = Tokenizer.from_file(str(model.tokenizer_file))
    theirs = AutoTokenizer.from_pretrained(model.path, gguf_file=model.weight_files[0].name)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"]


def test_weights_are_those_of_the_gguf_package() -> None:
    model = smollm2()
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(model.weight_files[0]).tensors}
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    checked = {
        "model.embed_tokens.weight": None,
        "model.norm.weight": None,
        "model.layers.0.self_attn.q_proj.weight": heads["q_proj"],
        "model.layers.29.self_attn.k_proj.weight": heads["k_proj"],
        "model.layers.7.mlp.down_proj.weight": None,
    }
    found = {name: tensor.numpy() for name, tensor in iter_weights(model, verify=False) if name in checked}
    assert found.keys() == checked.keys()
    for name, num_heads in checked.items():
        original = stored[gguf_name(name)]
        expected = gguf.dequantize(original.data, original.tensor_type)
        assert np.array_equal(found[name] if num_heads is None else permute(found[name], num_heads), expected)


def test_the_exported_model_knows_the_capital_of_france(tmp_path: Path) -> None:
    """With query and key rows in the wrong order the answer is noise."""
    model = smollm2()
    folder = export_model(model, tmp_path / "exported", "bfloat16")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = network.generate(**prompt, max_new_tokens=7, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
