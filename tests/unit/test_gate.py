import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.gate import clean_string, clean_value, decode, gate_text, looks_binary

WORDS = "naïve café “quotes” – €5"


@pytest.mark.parametrize(
    ("data", "declared", "charset", "source"),
    [
        (b"\xef\xbb\xbf" + WORDS.encode(), "windows-1252", "utf-8", "bom"),
        (b"\xff\xfe" + WORDS.encode("utf-16-le"), None, "utf-16-le", "bom"),
        (b"\xfe\xff" + WORDS.encode("utf-16-be"), "utf-8", "utf-16-be", "bom"),
        (WORDS.encode("utf-16-le"), None, "utf-16-le", "utf-16-pattern"),
        (WORDS.encode("utf-16-be"), None, "utf-16-be", "utf-16-pattern"),
        (WORDS.encode("windows-1252"), "iso-8859-1", "windows-1252", "declared"),
        (WORDS.encode(), "iso-8859-1", "utf-8", "utf-8"),  # the header is wrong: strict UTF-8 does not pass by chance
        (WORDS.encode(), None, "utf-8", "utf-8"),
        (b'<meta charset="windows-1250">' + "žluťoučký".encode("windows-1250"), None, "cp1250", "meta"),
        (WORDS.encode("windows-1252"), None, "windows-1252", "fallback"),
        (WORDS.encode("windows-1252"), "no-such-charset", "windows-1252", "fallback"),
    ],
)
def test_charset_is_chosen_by_mark_header_utf8_meta_and_fallback(data, declared, charset, source):
    gated = decode(data, declared=declared)
    assert (gated.charset, gated.charset_from) == (charset, source)
    assert gated.text.endswith("žluťoučký" if source == "meta" else WORDS)
    assert not gated.repairs


def test_what_was_repaired_is_reported():
    gated = decode(b"a\x00b\x07c\r\nd")
    assert gated.text == "abc\nd"
    assert gated.repairs == {"nul": 1, "control": 1}


def test_undecodable_bytes_become_replacement_characters():
    gated = decode(b"caf\xe9 \xff", declared="utf-8")
    assert gated.text == "caf\ufffd \ufffd"
    assert gated.repairs == {"undecodable": 2}


def test_codecs_that_are_no_charsets_are_not_used():
    assert decode(b"caf\xe9", declared="rot13").charset == "windows-1252"


def test_split_surrogates_are_joined_and_lone_ones_replaced():
    gated = gate_text("\ud83d\ude00 \ud83d")
    assert gated.text == "😀 \ufffd"
    assert gated.repairs == {"lone_surrogate": 1}


@given(st.text(st.characters(), max_size=60))
def test_a_clean_string_can_be_stored(text):
    clean = clean_string(text)
    assert "\x00" not in clean
    clean.encode("utf-8")
    assert clean_string(clean) == clean


@given(st.binary(max_size=200), st.sampled_from([None, "utf-8", "utf-16", "shift_jis", "utf-7", "idna", "hex"]))
def test_any_bytes_give_storable_text(data, declared):
    text = decode(data, declared=declared).text
    assert "\x00" not in text
    text.encode("utf-8")


def test_values_are_cleaned_at_every_depth():
    assert clean_value({"a\x00": ["b\x00", {"c": "\ud800"}], "n": 1}) == {"a": ["b", {"c": "\ufffd"}], "n": 1}


@pytest.mark.parametrize(
    ("data", "binary"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4, True),
        (b"\x7fELF" + bytes(400), True),
        (WORDS.encode(), False),
        (WORDS.encode("utf-16-le"), False),
        (b"one NUL in a long text\x00" + b" text" * 200, False),
        (b"", False),
    ],
)
def test_binary_data_is_recognised(data, binary):
    assert looks_binary(data) is binary
