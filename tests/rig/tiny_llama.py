"""Writes a random Llama (4 layers, hidden size 256, 2000-token BPE) in several shards: `tiny_llama.py DIRECTORY`."""

import hashlib
import os
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2000
COMMIT = hashlib.sha1(b"tiny-llama", usedforsecurity=False).hexdigest()
DOWNLOADED_AT = 1_760_000_000.0
TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}<|assistant|>"


def main(directory: Path) -> None:
    """Make the model, its tokenizer and its configuration."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory, max_shard_size="1500KB")
    _tokenizer().save_pretrained(directory)
    _pretend_download(directory)


def _pretend_download(directory: Path) -> None:
    """Beside each file what `hf download --local-dir` leaves: commit, etag (SHA-256 or git blob id), time.

    The files are as old as that, too: one that is younger than its note was changed after the download.
    """
    notes = directory / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    for path in sorted(directory.glob("*.*")):
        if path.is_dir():
            continue
        path.chmod(0o644)
        os.utime(path, (DOWNLOADED_AT, DOWNLOADED_AT))
        content = path.read_bytes()
        blob = b"blob %d\0" % len(content) + content
        is_lfs = path.suffix == ".safetensors"
        etag = hashlib.sha256(content) if is_lfs else hashlib.sha1(blob, usedforsecurity=False)
        (notes / f"{path.name}.metadata").write_text(f"{COMMIT}\n{etag.hexdigest()}\n{DOWNLOADED_AT}\n")


def _tokenizer() -> PreTrainedTokenizerFast:
    """Trained on numbers spelt out: the same everywhere, and enough different text for every token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    text = (f"{number} {number * number} {number:b} {number:x} plus {number**3}" for number in range(20_000))
    tokenizer.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=2048
    )
    fast.chat_template = TEMPLATE
    return fast


if __name__ == "__main__":
    main(Path(sys.argv[1]))
