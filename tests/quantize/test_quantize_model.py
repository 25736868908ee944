"""A whole model quantised: the folder loads, computes nearly the same, and more nearly than after plain rounding."""

import gzip
import json
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Encoding, Tokenizer

from deploy.cli import quantize
from deploy.cli.model import main
from services.worker.engine.cpu import CpuEngine
from services.worker.models.layer_parts import PROJECTIONS, projection
from services.worker.models.parameters import Parameters
from services.worker.models.registry import builder_of
from services.worker.quantize import awq, clipping
from services.worker.quantize.calibration import Heads, LayerPass, run_layer, split_text
from services.worker.quantize.command import quantise_model
from services.worker.quantize.grids import Int4Grid
from services.worker.quantize.quantizer import METHODS, Method, Recipe
from services.worker.quantize.statistics import seen
from shared.quantization.scheme import Quantization
from shared.repository.errors import ModelError
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights
from tests.engine.driver import generate, greedy
from tests.engine.options import Options
from tests.engine.reference import LogitsRecorder
from tests.stored_models import store_tiny_model
from tests.tiny_models import ARCHITECTURES, CORPUS, make_tiny_model

TEXT = "\n".join(CORPUS * 3)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def stored(folder: Path, architecture: str = "LlamaForCausalLM", **options: object) -> StoredModel:
    return store_tiny_model(folder, architecture, **{**SIZES, **options})


def stored_with_outliers(folder: Path, **options: object) -> StoredModel:
    """Some of each layer's inputs are much larger than the others, as in every model that was trained."""
    source = make_tiny_model(folder / "sources" / "tiny", "LlamaForCausalLM", **{**SIZES, **options})
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if "layers" in name and name.endswith("norm.weight"):
            tensor[::16] *= 12
        if name.endswith(("up_proj.weight", "v_proj.weight")):
            tensor[::16] *= 6
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return ModelRepository(folder / "models").add(inspect_path(source), "tiny")


def quantised(folder: Path, model: StoredModel, recipe: Recipe, name: str) -> StoredModel:
    """The quantised model in the same repository."""
    quantise_model(model, recipe, TEXT, folder / name)
    return ModelRepository(folder / "models").add(inspect_path(folder / name), name)


def text_logits(model: StoredModel) -> torch.Tensor:
    """After each token of some of the text, float32 [tokens, vocabulary]."""
    ids = Tokenizer.from_file(str(model.tokenizer_file)).encode(TEXT).ids[:96]
    recorder = LogitsRecorder(CpuEngine.load(model, Options(kv_cache_memory_bytes=8 << 20)))
    generate(recorder, [ids[:length] for length in range(1, len(ids))], greedy(1))
    return torch.cat(recorder.logits)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_folder_is_a_quantised_model(tmp_path: Path, architecture: str, method: Method) -> None:
    """Biases, norms of heads, tied embeddings and windows are still where they belong."""
    options = {"sliding_window": 24} if architecture == "MistralForCausalLM" else {}
    model = stored(tmp_path, architecture, **options)
    recipe = Recipe(method, group_size=32)
    found = quantised(tmp_path, model, recipe, "quantised")
    assert found.config.quantization == recipe.quantization
    exact, rounded = dict(iter_weights(model)), dict(iter_weights(found))
    assert exact.keys() == rounded.keys()
    most = 0.45 if method in ("awq", "gptq") else 0.15  # of random weights, which are harder than a trained model's
    before, after = text_logits(model), text_logits(found)
    assert (after - before).norm() < most * before.norm()
    assert torch.equal(exact["model.embed_tokens.weight"], rounded["model.embed_tokens.weight"])


@pytest.mark.parametrize("method", METHODS)
def test_calibration_is_better_than_plain_rounding(tmp_path: Path, method: Method) -> None:
    model = stored_with_outliers(tmp_path)
    before = text_logits(model)
    errors = {
        calibrated: float(
            (text_logits(quantised(tmp_path, model, Recipe(method, 64, calibrated=calibrated), name)) - before).norm()
        )
        for calibrated, name in ((True, "calibrated"), (False, "plain"))
    }
    assert errors[True] < 0.95 * errors[False]


def test_desc_act_orders_the_inputs(tmp_path: Path) -> None:
    model = stored(tmp_path)
    found = quantised(tmp_path, model, Recipe("gptq", 32, desc_act=True), "ordered")
    assert found.config.quantization == Quantization(layout="gptq", group_size=32, desc_act=True, zeros_less_one=True)
    groups = load_file(found.weight_files[0])["model.layers.0.mlp.down_proj.g_idx"]
    assert sorted(groups.tolist()) == [group for group in range(4) for _ in range(32)]
    assert groups.tolist() != sorted(groups.tolist())
    before = text_logits(model)
    assert (text_logits(found) - before).norm() < 0.5 * before.norm()


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_awqs_scales_change_nothing_by_themselves(tmp_path: Path, architecture: str) -> None:
    """What is scaled up in one projection is scaled down before it: biases and shared key heads included."""
    model = stored(tmp_path, architecture)
    config = model.config
    parameters = Parameters(iter_weights(model), config.parameter_shapes(), torch.float32)
    decoder = builder_of(config.architecture)(config, parameters)
    residual = decoder.embedding[torch.arange(3, 99)]
    heads, layer = Heads(config, decoder.windows(), len(residual)), decoder.layers[0]
    layer_pass = LayerPass(heads, [residual])
    sees = {name: seen(layer_pass.inputs(name, layer)) for name in PROJECTIONS}
    repeats = (config.num_attention_heads // config.num_key_value_heads, config.head_dim)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(awq, "output_error", lambda difference, products: float(-difference.std()))  # any power but 0
        scaled, _ = awq.scale_layer(layer, sees, Int4Grid(32), repeats, torch.bfloat16)
    for name in PROJECTIONS:
        assert not torch.allclose(projection(scaled, name).weight, projection(layer, name).weight, rtol=0.1)
    before, after = (run_layer(heads, each, [residual])[0] for each in (layer, scaled))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_awq_clips_all_but_queries_and_keys(tmp_path: Path) -> None:
    model = stored_with_outliers(tmp_path)
    clipped = dict(iter_weights(quantised(tmp_path, model, Recipe("awq", 32), "clipped")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clipping, "_MOST_STEPS", 0)
        whole = dict(iter_weights(quantised(tmp_path, model, Recipe("awq", 32), "whole")))
    same = {name for name in whole if "layers.0." in name and torch.equal(clipped[name], whole[name])}
    assert {name.split(".")[-2] for name in same if name.endswith("_proj.weight")} == {"q_proj", "k_proj"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--method", "awq", "--group-size", "128"],
            "its 64 inputs are no multiple of the group_size 128; try --group-size 32 or 64",
        ),
        (["--method", "w8a16", "--group-size", "64"], "--group-size is of awq and gptq"),
        (["--method", "awq", "--desc-act"], "--desc-act is of gptq"),
        (["--method", "fp8", "--calibration", "{short}"], "the calibration text has 2 tokens"),
        (["--method", "fp8", "--calibration", "{absent}"], "the file is missing"),
        (["--method", "fp8", "--calibration", "{bytes}"], "bytes.gz: --calibration is not UTF-8 text"),
        (["--method", "fp8", "--output", "{exists}"], "exists already"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    stored(tmp_path)
    names = {"short": "short.txt", "absent": "absent.txt", "bytes": "bytes.gz", "exists": "exists"}
    places = {word: tmp_path / name for word, name in names.items()}
    places["bytes"].write_bytes(gzip.compress(TEXT.encode()))
    places["short"].write_text("the")
    places["exists"].mkdir()
    (tmp_path / "text.txt").write_text(TEXT)
    said = [word.format(**places) for word in words]
    defaults = ["--calibration", str(tmp_path / "text.txt"), "--output", str(tmp_path / "out")]
    assert main(["quantize", "tiny", "--model-repository", str(tmp_path / "models"), *defaults, *said]) == 1
    told = capsys.readouterr()
    assert [line for line in told.err.splitlines() if line.startswith("tokenbus model: ") and reason in line]
    assert not (tmp_path / "out").exists()
    assert told.out == ""


BAD_NUMBERS = [
    ("model.layers.1.mlp.up_proj.weight", float("nan"), "model.layers.1.mlp.up_proj.weight holds a number that is not"),
    ("model.layers.0.self_attn.o_proj.weight", float("inf"), "o_proj.weight holds a number that is not finite"),
    ("model.layers.0.input_layernorm.weight", -float("inf"), "input_layernorm.weight holds a number that is"),
    ("model.embed_tokens.weight", float("nan"), "model.embed_tokens.weight holds a number that is not finite"),
    ("lm_head.weight", float("inf"), "lm_head.weight holds a number that is not finite"),
    ("model.layers.1.mlp.up_proj.weight", 3e38, "model.layers.1 cannot be"),  # finite, but its products are not
    ("model.layers.0.input_layernorm.weight", 3e38, "model.layers.0 cannot be"),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("name", "number", "reason"), BAD_NUMBERS)
def test_what_would_make_a_model_that_cannot_be_loaded_is_refused(
    tmp_path: Path, name: str, number: float, reason: str, method: Method
) -> None:
    source = make_tiny_model(tmp_path / "source", "LlamaForCausalLM", **SIZES)
    tensors = load_file(source / "model.safetensors")
    tensors[name].view(-1)[5] = number
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    model = ModelRepository(tmp_path / "models").add(inspect_path(source), "tiny")
    with pytest.raises(ModelError, match=reason):
        quantise_model(model, Recipe(method, 32), TEXT, tmp_path / "out")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["models", "source"]


def test_a_person_quantises_and_adds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    repository = ["--model-repository", str(tmp_path / "models")]
    words = ["--method", "gptq", "--group-size", "32", "--desc-act", "--calibration", str(tmp_path / "text.txt")]
    assert main(["quantize", "tiny", *words, "--output", str(tmp_path / "out"), *repository]) == 0
    assert "Quantised tiny version 1" in capsys.readouterr().out
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["bits"], config["group_size"], config["desc_act"]) == ("gptq", 4, 32, True)
    assert main(["add", str(tmp_path / "out"), "--name", "small", *repository]) == 0
    assert main(["show", "small", *repository]) == 0
    assert "gptq" in capsys.readouterr().out


def test_the_command_offers_the_methods_that_there_are() -> None:
    """It may not import them."""
    assert quantize.METHODS == METHODS
    assert {method for method in METHODS if Recipe(method).quantization.group_size} == set(quantize.GROUPED)


@pytest.mark.parametrize("command", ["quantize", "export"])
def test_a_disk_that_is_full_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    stored(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    options = {
        "quantize": ["--method", "fp8", "--calibration", str(tmp_path / "text.txt"), "--output", str(tmp_path / "out")],
        "export": [str(tmp_path / "out")],
    }
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        status = main([command, "tiny", "--model-repository", str(tmp_path / "models"), *options[command]])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert status == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tokenbus model: ")]
    assert len(told) == 1
    assert "model-00001.safetensors: cannot be written" in told[0]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["models", "sources", "text.txt"]


def test_int8_of_weights_alone_is_packed(tmp_path: Path) -> None:
    """Other tools look for weight_packed wherever activations keep their 16 bits."""
    quantise_model(stored(tmp_path), Recipe("w8a16"), TEXT, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    (group,) = config["config_groups"].values()
    assert (config["format"], group["input_activations"]) == ("pack-quantized", None)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    projections = {name.rpartition(".")[0] for name in tensors if "_proj." in name}
    ends = ("weight_packed", "weight_scale", "weight_shape")
    assert {name for name in tensors if "_proj." in name} == {f"{name}.{end}" for name in projections for end in ends}


def test_a_text_is_split_into_equal_sequences(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(stored(tmp_path).tokenizer_file))
    sequences = split_text(tokenizer, TEXT, 100)
    assert {len(sequence) for sequence in sequences} == {100}
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert [token for sequence in sequences for token in sequence] == ids[: 100 * len(sequences)]
    assert len(ids) - 100 * len(sequences) < 100
    with pytest.raises(ModelError, match="at least 32"):
        split_text(tokenizer, "the", 100)


def test_of_a_long_text_no_more_is_encoded_than_is_used(tmp_path: Path) -> None:
    """The rest would take gigabytes. Whatever a token's length is, the sequences are those of the whole text."""
    exact = Tokenizer.from_file(str(stored(tmp_path).tokenizer_file))
    lengths = []

    class Counting:
        def encode(self, text: str, add_special_tokens: bool) -> Encoding:
            lengths.append(len(text))
            return exact.encode(text, add_special_tokens=add_special_tokens)

    for words in (TEXT, " capital" * 100, "x" * 100):
        text = words * (4_000_000 // len(words))
        sequences = split_text(Counting(), text, 16)  # type: ignore[arg-type]
        assert max(lengths) < len(text) // 10
        ids = exact.encode(text[:100_000], add_special_tokens=False).ids
        assert [token for sequence in sequences for token in sequence] == ids[: 128 * 16]
        assert len(sequences) == 128
