"""Writes a llama-architecture GGUF with random weights: a real model for a real server, without a download.

The text it makes is nonsense, which is all the better: the rig looks at when tokens leave, not at what they say. The
size sets the pace: 384 x 6 is about 27 MB and one to three milliseconds per token on one slow core.

Usage: model.py OUT.gguf [--embedding 384] [--blocks 6] [--seed 7]
"""

from __future__ import annotations

import argparse
import string
from pathlib import Path

import gguf
import numpy as np

WORDS = (
    "the of and to in is that for it as with on be at by this are from or an one all there when time if no out so "
    "up into than them can only other new some could these two may then do first any my now such like our over"
).split()
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def vocabulary() -> tuple[list[bytes], list[float], list[int]]:
    """An SPM vocabulary: three control tokens, every byte, every letter and a few words; tokens, scores, types."""
    kinds = gguf.TokenType
    entries: list[tuple[str, float, int]] = [
        ("<unk>", 0.0, kinds.UNKNOWN),
        ("<s>", 0.0, kinds.CONTROL),
        ("</s>", 0.0, kinds.CONTROL),
    ]
    entries += [(f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256)]
    pieces = ["\u2581", *string.ascii_letters, *string.digits, *".,:!?'-"]
    pieces += ["\u2581" + word for word in WORDS] + [word for word in WORDS if len(word) > 1]
    seen: set[str] = set()
    for rank, piece in enumerate(pieces):
        if piece not in seen:
            seen.add(piece)
            entries.append((piece, -float(rank), kinds.NORMAL))
    while len(entries) % 32:
        entries.append((f"<unused{len(entries)}>", 0.0, kinds.UNUSED))
    return [e[0].encode() for e in entries], [e[1] for e in entries], [int(e[2]) for e in entries]


def write(path: Path, embedding: int, blocks: int, seed: int) -> None:
    """Writes the model; the file appears under its name only when it is whole."""
    random = np.random.default_rng(seed)
    tokens, scores, kinds = vocabulary()
    heads, feed = embedding // 32, embedding * 2
    part = path.with_suffix(".part")
    out = gguf.GGUFWriter(str(part), "llama")
    out.add_name("tokengauge-random")
    out.add_context_length(4096)
    out.add_embedding_length(embedding)
    out.add_block_count(blocks)
    out.add_feed_forward_length(feed)
    out.add_head_count(heads)
    out.add_head_count_kv(heads)
    out.add_rope_dimension_count(32)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores(scores)
    out.add_token_types(kinds)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_chat_template(CHAT_TEMPLATE)

    def tensor(name: str, *shape: int) -> None:
        scale = 1.0 / np.sqrt(shape[-1])
        out.add_tensor(name, (random.standard_normal(shape) * scale).astype(np.float32))

    def ones(name: str) -> None:
        out.add_tensor(name, np.ones(embedding, dtype=np.float32))

    out.add_tensor("token_embd.weight", random.standard_normal((len(tokens), embedding)).astype(np.float32))
    for block in range(blocks):
        ones(f"blk.{block}.attn_norm.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{block}.{name}.weight", embedding, embedding)
        ones(f"blk.{block}.ffn_norm.weight")
        tensor(f"blk.{block}.ffn_gate.weight", feed, embedding)
        tensor(f"blk.{block}.ffn_up.weight", feed, embedding)
        tensor(f"blk.{block}.ffn_down.weight", embedding, feed)
    ones("output_norm.weight")
    # Control, byte and unused tokens get almost no weight, so that text comes out and no stream ends early.
    rows = random.standard_normal((len(tokens), embedding)).astype(np.float32) * 0.5
    rows[np.array(kinds) != int(gguf.TokenType.NORMAL)] *= 0.001
    out.add_tensor("output.weight", rows)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    part.rename(path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--embedding", type=int, default=384)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    write(args.out, args.embedding, args.blocks, args.seed)


if __name__ == "__main__":
    main()
