"""How long requests may be, and what of it nobody is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.command_line import describe
from watchdog.preflight.length import Length, length_of
from watchdog.preflight.wishes import Wishes, wishes_of

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = {
    "model_type": "phi3",
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
}


def asked(*flags: str) -> Wishes:
    """What ``vllm serve m`` with ``flags`` asks for."""
    return wishes_of(describe(["vllm", "serve", "m", *flags], {}, {}))


def length(config: dict[str, Any] | None, *flags: str, **environment: str) -> Length:
    """Of a model with that configuration."""
    return length_of(config, asked(*flags), environment)


def llama(limit: int, **rope: object) -> dict[str, Any]:
    """A model of that length with a rope."""
    config: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": limit}
    return {**config, "rope_scaling": rope} if rope else config


@pytest.mark.parametrize(
    ("config", "own"),
    [
        (llama(8192), 8192),
        (llama(131072, rope_type="llama3", factor=8.0), 131072),
        (llama(4096, type="linear", factor=4.0), 16384),
        (llama(4096, type="dynamic", factor=2.0), 8192),
        (llama(32768, **YARN), 32768),
        (llama(131072, **YARN), 131072),
        (llama(4096, rope_type="default"), 4096),
        (
            {**llama(4096), "rope_parameters": {"full_attention": {"type": "linear", "factor": 2}}},
            8192,
        ),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
        ({"model_type": "x", "max_position_embeddings": 8192, "seq_length": 4096}, 4096),
        ({"model_type": "x", "max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        (
            {
                "model_type": "gemma3",
                "text_config": {
                    "model_type": "gemma3_text",
                    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                },
            },
            131072,
        ),
    ],
)
def test_a_models_own_length_is_that_of_vllm(config: dict[str, Any], own: int) -> None:
    """FACT: keys, rope factors and defaults count as vLLM 0.32 counts them (compared with it)."""
    found = length(config)
    assert (found.own, found.tokens, found.problem) == (own, own, "")


def test_more_than_the_models_own_is_refused() -> None:
    """FACT: vLLM does not start with a longer --max-model-len, unless the environment lets it."""
    found = length(llama(8192), "--max-model-len", "10k")
    assert "--max-model-len 10,000 is over the model's own 8,192" in found.problem
    assert "which vLLM refuses" in found.problem
    let = length(llama(8192), "--max-model-len", "10k", VLLM_ALLOW_LONG_MAX_MODEL_LEN="1")
    assert (let.problem, let.tokens) == ("", 10000)
    assert "nonsense" in let.warnings[0]
    assert length(llama(8192), "--max-model-len", "8K").problem == ""


def test_an_older_yarn_needs_an_override() -> None:
    """FACT: vLLM 0.32 does not apply YaRN's factor; the line names the flag that helps."""
    found = length(llama(32768, **YARN), "--max-model-len", "131072")
    assert "--hf-overrides '{\"max_position_embeddings\": 131072}'" in found.problem
    helped = length(llama(131072, **YARN), "--max-model-len", "131072")
    assert helped.problem == ""


def test_longrope_is_cut_off_silently() -> None:
    """FACT: without a flag a longrope model serves its original length; that is a warning."""
    found = length(LONG)
    assert (found.tokens, found.own) == (4096, 131072)
    assert "vLLM serves 4,096 tokens of the model's 131,072" in found.warnings[0]
    assert length(LONG, "--max-model-len", "131072").warnings == ()


def test_a_shorter_length_is_told() -> None:
    """FACT: with less than its own the model ends answers early, and nobody logs that."""
    found = length(llama(8192), "--max-model-len", "4096")
    assert "requests end at 4,096 tokens of the model's 8,192" in found.warnings[0]


@pytest.mark.parametrize("word", ["auto", "-1", "AUTO"])
def test_a_fitted_length_is_at_most_the_models(word: str) -> None:
    """FACT: ``auto`` takes what fits: the model's own is the most."""
    found = length(llama(8192), f"--max-model-len={word}")
    assert (found.tokens, found.warnings) == (8192, ())
    assert "the engine takes what fits" in found.words


def test_without_a_window_the_length_is_the_windows() -> None:
    """FACT: --disable-sliding-window cuts the model down to its window."""
    config = {**llama(32768), "sliding_window": 4096}
    assert length(config).own == 32768
    assert length(config, "--disable-sliding-window").own == 4096


def test_what_nobody_knows_is_not_claimed() -> None:
    """FACT: without a configuration, or one that says nothing, there is no length."""
    assert length(None).tokens is None
    assert length(None, "--max-model-len", "32K").tokens == 32768
    assert (length({"model_type": "x"}).own, length({"model_type": "x"}).tokens) == (None, None)
    assert length({"model_type": "x", "max_position_embeddings": "many"}).own is None


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("1k", 1000), ("32K", 32768), ("25.6k", 25600), ("1M", 1 << 20), ("4096", 4096)],
)
def test_lengths_are_written_as_vllm_reads_them(text: str, tokens: int) -> None:
    """FACT: small letters are decimal, capitals binary."""
    assert asked("--max-model-len", text).length == tokens


@pytest.mark.parametrize("text", ["1.5K", "many", "4096.5", "\x1b[31m", "1e6"])
def test_what_vllm_does_not_take_is_a_problem(text: str) -> None:
    """FACT: a number that vLLM cannot read is told, with the flag."""
    (line,) = asked(f"--max-model-len={text}").unread
    assert line.startswith("vLLM will not take --max-model-len '")
    assert line.isprintable()


def test_overrides_are_laid_over_the_configuration() -> None:
    """FACT: JSON, dotted flags and the older --rope-scaling end up in one place."""
    flags = ("--hf-overrides", '{"text_config": {"max_position_embeddings": 9}}')
    assert asked(*flags).overrides == {"text_config": {"max_position_embeddings": 9}}
    dotted = ("--hf-overrides.rope-scaling.factor", "2.0")
    assert asked(*dotted).overrides == {"rope_scaling": {"factor": 2.0}}
    old = asked("--rope-scaling", '{"rope_type": "linear", "factor": 2}')
    assert old.overrides == {"rope_scaling": {"rope_type": "linear", "factor": 2}}
    assert any("no --rope-scaling any more" in note for note in old.notes)
    assert asked("--hf-overrides", "{").unread[0].endswith("expected JSON")


@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=20))
def test_no_flag_breaks_it(tokens: str, share: str, overrides: str) -> None:
    """FACT: whatever flags hold, there are wishes, and what is wrong in lines."""
    wishes = asked(
        f"--max-model-len={tokens}", f"--block-size={share}", f"--hf-overrides={overrides}"
    )
    assert all("\n" not in line for line in wishes.unread)
    assert wishes.block > 0
