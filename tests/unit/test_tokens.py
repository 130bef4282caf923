import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipeline.engine_client import EngineClient
from pipeline.errors import PipelineError
from pipeline.settings import Settings
from pipeline.tokens import BLOCK_CHARS, EngineTokens, EstimatedTokens, cached_counter, token_counter


def byte_tokenizer() -> bytes:
    """A byte-level tokenizer with one merge: `t` and `h` are one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*alphabet, "th"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().encode()


class Engine(EngineClient):
    def __init__(self, data: bytes | None) -> None:
        self.data = data

    def tokenizer_json(self) -> bytes | None:
        return self.data


def test_offsets_are_code_points_and_characters_of_several_tokens_end_together():
    counter = EngineTokens(byte_tokenizer())
    assert list(counter.ends("the ü")) == [2, 3, 4, 5, 5]
    assert counter.count("the ü") == 5


def test_a_long_text_is_counted_in_blocks_cut_before_words():
    counter = EngineTokens(byte_tokenizer())
    text = "the cat " * (BLOCK_CHARS // 4)
    ends = counter.ends(text)
    assert len(ends) == counter.count(text) == len(text) // 8 * 7
    assert ends[-1] == len(text)
    assert ends == sorted(ends)


@given(st.text(max_size=80))
def test_the_estimate_agrees_with_itself(text):
    counter = EstimatedTokens()
    ends = list(counter.ends(text))
    assert ends == sorted(ends)
    assert len(ends) == counter.count(text)
    assert not text or ends[-1] == len(text)


def test_the_engines_tokenizer_is_kept_and_found_again_without_the_engine(tmp_path):
    settings = Settings(home=tmp_path)
    counter = token_counter(Engine(byte_tokenizer()), settings)
    again = cached_counter(counter.name, settings)
    assert again is not None
    assert again.name == counter.name
    assert again.count("the") == 2
    assert cached_counter("unknown", settings) is None


def test_an_engine_without_tokenizer_gets_the_estimate_and_a_broken_one_an_error(tmp_path):
    settings = Settings(home=tmp_path)
    counter = token_counter(Engine(None), settings)
    assert counter.name == EstimatedTokens.name
    assert cached_counter(counter.name, settings) is not None
    with pytest.raises(PipelineError, match=r"tokenizer\.json"):
        token_counter(Engine(json.dumps({"no": "tokenizer"}).encode()), settings)
