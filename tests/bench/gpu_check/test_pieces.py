"""What parts are made of, by itself."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bench.gpu_check import models, sanitizer, throughput
from bench.gpu_check.attention_inputs import DECODE, PREFILL, TINY_DECODE, TINY_FP8, make_inputs
from bench.gpu_check.attention_table import verdict
from bench.gpu_check.equality import Agreement
from bench.gpu_check.findings import Findings, load_found
from bench.gpu_check.report import Report, markdown, save_report
from bench.gpu_check.runner import Outcome
from bench.gpu_check.size import MOST_BYTES, Size, tree_and_wheels
from bench.gpu_check.steps import Sequences, random_prompts
from bench.gpu_check.where import Where
from bench.machine import this_machine

# ---- findings and report --------------------------------------------------------------------------------------------


def test_a_row_may_have_other_columns_than_the_first_one(tmp_path: Path) -> None:
    findings = Findings(tmp_path / "a.json")
    findings.row("table", who="us", rate=1.0)
    findings.row("table", who="them", goal=0.5)
    [table] = load_found(tmp_path / "a.json").tables
    assert table.columns == ["who", "rate", "goal"]
    assert table.rows == [["us", 1.0, None], ["them", None, 0.5]]


def test_what_was_not_written_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"checks": [')
    for name in ("none.json", "half.json"):
        assert load_found(tmp_path / name).checks == []


def test_the_report_shows_what_failed_and_what_was_measured(tmp_path: Path) -> None:
    findings = Findings(tmp_path / "a.json")
    findings.check("all is | well", False, "two\nlines")
    findings.row("A table", row="x", us=123456.7, reached=None)
    findings.note("remarkable")
    outcome = Outcome(
        name="a", title="A part", status="timed out", seconds=3.0, limit_s=2.0, found=findings.found, problem="hung"
    )
    report = Report(
        name="n", is_dry=True, started_at="now", device={}, machine=this_machine(), size="small", parts=[outcome]
    )
    assert not report.is_good
    text = "\n".join(markdown(report))
    for words in (
        "| A part | timed out | 3 | 2 | 0 of 1 |",
        "| all is \\| well | **NO** | two lines |",
        "| x | 123456.7 |  |",
        "- remarkable",
        "hung",
        "A dry run",
    ):
        assert words in text
    assert save_report(report, tmp_path / "new").read_text() == text + "\n"
    assert (tmp_path / "new" / "gpu-n.json").exists()


def test_goals_are_met_or_missed() -> None:
    assert [verdict(value, 0.85, 0.9)["reached"] for value in (0.84, 0.85, 0.9)] == ["missed", "met", "stretch met"]
    assert verdict(3.0, 2.0, 0) == {"goal": 2.0, "stretch": None, "reached": "met"}
    assert verdict(None, 2.0, 3.0)["reached"] is None


def test_the_size_is_that_of_what_travels(tmp_path: Path) -> None:
    for name, size in (("a/b.py", 10), (".git/x", 99), ("a/__pycache__/b.pyc", 99), (".gpu-wheels/w.whl", 5)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert tree_and_wheels(tmp_path) == Size(tree=10, wheels=5)
    assert "MORE THAN 60 MB" in Size(MOST_BYTES, 1).told()


# ---- equality -------------------------------------------------------------------------------------------------------

EXACT = torch.tensor([[0.0, 3.0, 2.99, -1.0, 0.0]])


def agreement(token: int, logits: torch.Tensor) -> Agreement:
    found = Agreement()
    found.num_equal = 10
    found.compare(torch.tensor([token]), logits, EXACT)
    return found


def test_the_likeliest_token_is_equal_a_close_one_a_tie_and_another_one_wrong() -> None:
    equal = agreement(1, EXACT)
    assert (equal.num_equal, equal.is_good) == (11, True)
    tie = agreement(2, EXACT + torch.tensor([[0.0, 0.0, 0.02, 0.0, 0.0]]))
    assert (tie.num_ties, tie.is_good) == (1, True)
    wrong = agreement(0, EXACT + torch.tensor([[5.0, 0.0, 0.0, 0.0, 0.0]]))
    assert (wrong.num_wrong, wrong.is_good) == (1, False)


def test_logits_that_are_far_off_no_numbers_or_not_followed_are_wrong() -> None:
    assert not agreement(1, EXACT * 1.1).is_good
    assert not agreement(1, EXACT * float("nan")).is_good
    assert agreement(2, EXACT).num_unsampled == 1
    assert not agreement(2, EXACT).is_good


# ---- models and steps -----------------------------------------------------------------------------------------------


def test_shapes_are_those_of_the_models() -> None:
    assert models.num_weights(models.SMOLLM2) == 134_515_008
    assert models.num_weights(models.LLAMA) == 8_030_261_248 - 128256 * 4096
    assert models.kv_bytes_of_token(models.LLAMA) == 131072


def test_weights_are_the_same_for_a_seed_and_fit_the_configuration() -> None:
    config = models.small(models.SMOLLM2)
    one, again, other = (dict(models.random_weights(config, seed)) for seed in (1, 1, 2))
    assert {name: tuple(tensor.shape) for name, tensor in one.items()} == config.parameter_shapes()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_byte_tokenizer_has_every_text_and_every_id() -> None:
    tokenizer = models.byte_tokenizer(512)
    assert tokenizer.get_vocab_size() == 512
    assert tokenizer.decode(tokenizer.encode("naïve 茶").ids) == "naïve 茶"


def test_the_bandwidths_limit_counts_weights_and_contexts() -> None:
    load = throughput.Load(num_prompt_tokens=100, num_output_tokens=100)
    kept = 4 * 150 * models.kv_bytes_of_token(models.SMOLLM2)
    assert throughput.least_step_s(models.SMOLLM2, load, 4, 1000) == pytest.approx((2 * 134_515_008 + kept) / 1e12)


def test_prompts_come_whole_within_the_budget_and_then_one_token_each() -> None:
    sequences = Sequences(random_prompts(3, 20, 100), 40, 16)
    first, second = sequences.prompt_steps(50)
    assert first.cu_seqlens_q.tolist() == [0, 20, 40]
    assert second.cu_seqlens_q.tolist() == [0, 20]
    assert second.slot_mapping.tolist() == list(range(6 * 16, 6 * 16 + 20))
    sequences.add([7, 8, 9])
    step = sequences.decode_step()
    assert step.token_ids.tolist() == [7, 8, 9]
    assert step.positions.tolist() == [20] * 3
    assert step.context_lens.tolist() == [21] * 3
    assert step.block_tables.tolist() == [[0, 1], [3, 4], [6, 7]]
    assert step.slot_mapping.tolist() == [20, 3 * 16 + 20, 6 * 16 + 20]
    behind = sequences.step_ahead()
    assert behind.token_ids.tolist() == [-1] * 3
    assert behind.carried is not None and behind.carried.tolist() == [0, 1, 2]
    assert behind.context_lens.tolist() == [22] * 3
    sequences.add([1, 2, 3])
    assert [token_ids[-2:] for token_ids in sequences.token_ids] == [[7, 1], [8, 2], [9, 3]]


# ---- attention ------------------------------------------------------------------------------------------------------


def test_a_tables_bytes_and_operations() -> None:
    assert DECODE[0].cache_bytes == 64 * 4096 * 8 * 128 * 2 * 2
    assert PREFILL.flops == 4 * 32 * 128 * (8192 * 8193 // 2)
    skewed = DECODE[3].lengths
    assert (len(skewed), abs(np.mean(skewed) - 4096) < 1, max(skewed) > 2 * 4096) == (64, True, True)


@pytest.mark.parametrize("row", [*TINY_DECODE, TINY_FP8], ids=lambda row: row.name)
def test_dense_caches_hold_what_the_pages_hold(row: object) -> None:
    inputs = make_inputs(row, Where.find(is_dry=True))  # type: ignore[arg-type]
    dense = inputs.dense(inputs.key_cache.float())
    for sequence, length in enumerate(inputs.row.lengths):
        for position in (0, 15, 16, length - 1):
            block = inputs.tables[sequence, position // 16]
            expected = inputs.key_cache[int(block), position % 16].float()
            assert torch.equal(dense[sequence, :, position], expected)


# ---- compute-sanitizer ----------------------------------------------------------------------------------------------

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RACES = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
NO_RACES = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


@pytest.mark.parametrize(
    ("status", "output", "is_good", "words"),
    [
        (0, CLEAN, True, "0"),
        (0, NO_RACES, True, "0"),
        (9, RACES, False, "1 hazard"),
        (1, CLEAN, False, "exit status 1"),
        (0, "nothing was said", False, "nothing was said"),
        (1, "========= Error: Device not supported. Please refer to ...", False, "does not work here"),
    ],
)
def test_a_sanitizers_word_is_taken_only_with_its_summary(status: int, output: str, is_good: bool, words: str) -> None:
    found, detail = sanitizer.judge(status, output)
    assert (found, words in detail) == (is_good, True)
