"""SentencePiece tokenizers from GGUF metadata, against SentencePiece's own rule."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import gguf
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, trainers

from inference.config import EngineConfig
from inference.core.process import CoreThread
from inference.detokenize import Detokenizer
from inference.executor import Executor
from inference.request import FinishReason, GrammarKind, GrammarSpec, Request, SamplingParams
from inference.tokenizer import Tokenizer, TokenizerError, load_tokenizer, save_tokenizer
from tests.tiny_models import generate, make_model, save

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CORPUS = ["The quick brown fox jumps over the lazy dog.", "der Fuchs läuft über die Straße", "price: 12.50, 13.75"] * 3
TEXTS = ["the dog", " the  price is 12", "Straße 東京", "a<s>b", "x\n\ty", ""]


@cache
def pieces() -> list[str]:
    """Single characters and what BPE makes of the corpus, best first."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    vocab = backend.get_vocab()
    return sorted(vocab, key=lambda token: (len(token) == 1, vocab[token]))


def write(path: Path, *, space: bool | None = None, kind: str = "llama") -> Path:
    tokens = ["<unk>", "<s>", "</s>", "<end_of_turn>", *BYTES, *pieces(), "[USER]"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 260 + [-float(rank) for rank in range(len(pieces()))] + [-1e4])
    writer.add_token_types([2, 3, 3, 3, *[6] * 256, *[1] * len(pieces()), 4])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if space is not None:
        writer.add_add_space_prefix(space)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module", params=[True, False], ids=["space in front", "none"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write(tmp_path_factory.mktemp("spm") / "model.gguf", space=request.param))


def by_the_rule(text: str, space: bool) -> list[str]:
    """Join the neighbours that make the best piece, the leftmost of equals, until none make one."""
    score = {piece: -rank for rank, piece in enumerate(pieces())}
    parts = list(("▁" if space and text else "") + text.replace(" ", "▁"))
    while True:
        made = [(score[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in score]
        if not made:
            break
        _, where = max(made)
        parts[-where : -where + 2] = [parts[-where] + parts[-where + 1]]
    return [token for part in parts for token in ([part] if part in score else [BYTES[b] for b in part.encode()])]


WORDS = [
    "the ",
    "th",
    " quick",
    "e",
    "brown",
    "  ",
    "fox.",
    "Fuchs",
    "ß",
    "über",
    "price",
    ": 12",
    ".5",
    "0",
    "東",
    "\n",
]


@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join))
@settings(max_examples=150, deadline=None)
def test_texts_are_cut_as_sentencepiece_cuts_them(tokenizer: Tokenizer, text: str) -> None:
    space = tokenizer.backend.decode([tokenizer.backend.token_to_id("▁")]) == ""
    ids = tokenizer.encode(text, special=False)
    assert [tokenizer.backend.id_to_token(token) for token in ids] == by_the_rule(text, space)
    assert tokenizer.decode(ids) == text
    spelled = b"".join(tokenizer.token_bytes.spelled(token) for token in ids).decode()
    assert spelled == (f" {text}" if space and text else text)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push((token,)) for token in ids) + detokenizer.flush() == text
    after = Detokenizer(tokenizer, continues=True)
    assert "".join(after.push((token,)) for token in ids) == spelled


def test_both_fixtures_differ(tmp_path: Path) -> None:
    with_space, without = (load_tokenizer(write(tmp_path / f"{s}.gguf", space=s)) for s in (True, False))
    assert with_space.encode("the") != without.encode("the")
    assert load_tokenizer(write(tmp_path / "unsaid.gguf")).encode("the") == with_space.encode("the")


def test_starts_ends_and_spelled_out_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_ids == (2, 3)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert tokenizer.encode("the")[0] == 1
    assert 1 in tokenizer.encode("a<s>b")[1:]
    assert 1 not in tokenizer.encode("a<s>b", special=False)
    assert tokenizer.backend.token_to_id("[USER]") in tokenizer.encode("the[USER]dog", special=False)
    assert tokenizer.token_bytes.spelled(3) == b"<end_of_turn>"


def test_a_saved_tokenizer_is_the_same_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    again = load_tokenizer(tmp_path)
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert again.eos_token_ids == tokenizer.eos_token_ids


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="'t5' is not known"):
        load_tokenizer(write(tmp_path / "model.gguf", kind="t5"))


def test_json_is_enforced_through_such_a_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Spaces and bytes stand in tokens otherwise than in byte-level BPE: the grammar must read them rightly."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "price": {"type": "integer", "maximum": 9999}},
        "required": ["name", "price"],
        "additionalProperties": False,
    }
    path = save(make_model("gemma3", vocab_size=tokenizer.vocab_size + 7), tmp_path)
    executor = Executor(
        EngineConfig(path, dtype="float32", num_threads=1, kv_cache_bytes=1 << 22), tokenizer, CoreThread
    )
    spec = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    prompts = [tuple(tokenizer.encode(text)) for text in CORPUS[:3]]
    try:
        sampling = SamplingParams(max_tokens=100, temperature=1.0)
        results = generate(executor, *(Request(str(i), prompt, sampling, spec) for i, prompt in enumerate(prompts)))
    finally:
        executor.shutdown()
    for tokens, last in results:
        assert last.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), schema)
