"""The two kinds of tokenizer that GGUF metadata describe, rebuilt: byte-level BPE and SentencePiece's BPE."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

# How byte-level BPE tokenizers split text before merging, by the name that GGUF gives the rule. The patterns are those
# of the models' own tokenizer.json files.
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2_SPLIT = _SPLIT % r"\p{N}"
_LLAMA3_SPLIT = _SPLIT % r"\p{N}{1,3}"
# GGUF's token types.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "▁"  # SentencePiece's stand-in for a space, U+2581


class UnknownSplit(ValueError):
    """The rule by which text is split before merging is not known. The message names it."""


def byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], types: Sequence[int], rule: str) -> Backend:
    """GGUF's `gpt2`: Llama 3, Qwen, SmolLM2. `rule` names the way text is split. Raises UnknownSplit."""
    backend = Backend(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[(left, right) for left, right in (merge.split(" ", 1) for merge in merges)],
            ignore_merges=rule == "llama-bpe",
            fuse_unk=False,
        )
    )
    if rule == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(rule)
    backend.decoder = decoders.ByteLevel()
    _add(backend, tokens, types)
    return backend


def _pre_tokenizer(rule: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if rule in ("qwen2", "llama-bpe"):
        pattern = Regex(_QWEN2_SPLIT if rule == "qwen2" else _LLAMA3_SPLIT)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, behavior="isolated"), byte_level])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rule == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if rule in ("gpt2", "gpt-2"):
        return gpt2
    raise UnknownSplit(f"pre-tokenizer {rule!r} is not known; known are qwen2, llama-bpe, smollm and gpt2")


def sentencepiece_bpe(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], *, space_in_front: bool
) -> Backend:
    """GGUF's `llama`: Llama 2, Mistral, Gemma.

    SentencePiece joins the two neighbours that make the piece of the highest score, until none make one; what no piece
    spells is spelled in bytes. As merges: every way to make a piece from two others, in the order of their scores.
    """
    vocab = {token: i for i, token in enumerate(tokens)}
    made = [i for i, kind in enumerate(types) if kind in (_NORMAL, _USER_DEFINED) and len(tokens[i]) > 1]
    made.sort(key=lambda i: -scores[i])  # stable: of equal scores the first token comes first
    merges = [
        (piece[:cut], piece[cut:])
        for piece in (tokens[i] for i in made)
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    unknown = next((tokens[i] for i, kind in enumerate(types) if kind == _UNKNOWN), None)
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if space_in_front else spaces
    joined = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*joined, decoders.Strip(" ", 1, 0)] if space_in_front else joined)
    _add(backend, tokens, types)
    return backend


def _add(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control tokens are special; user-defined ones are found in a text before anything is merged."""
    added = [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    backend.add_special_tokens([token for token in added if token.special])
    backend.add_tokens([token for token in added if not token.special])
