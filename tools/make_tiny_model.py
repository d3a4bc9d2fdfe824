#!/usr/bin/env python3
"""Write a random two-layer Qwen3 that a real vLLM serves: `make_tiny_model.py OUT_DIR`.

Runs in vLLM's environment (torch, transformers, tokenizers) and needs no network. The 0.7 MB
that it writes answer with noise, which is enough: what is tested is that tokens come, not which.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
VOCABULARY = 512
CORPUS = ["the engine answers with one token, and one token proves that it still works"] * 20
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of 512 tokens; the ids of PAD, start and end are 0, 1, 2."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=TURN_END, pad_token=PAD)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def model() -> Qwen3ForCausalLM:
    """Return the model with the weights of seed 0: the same bytes at every call."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
    )
    return Qwen3ForCausalLM(config).to(torch.bfloat16)


def main(out: Path) -> None:
    """Write the tokenizer and the model to the directory `out`."""
    tokenizer().save_pretrained(out)
    model().save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
