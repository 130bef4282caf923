from hypothesis import given
from hypothesis import strategies as st

from pipeline.chunk import chunk
from pipeline.tokens import EstimatedTokens

PIECES = st.sampled_from(
    ["# Head\n\n", "## Sub\n", "- item one\n", "a | b\n", "A sentence. ", "Another one! ", "\n\n", "   ", "word ",
     "ü", "漢字。", "x" * 90, "```\n# no heading\n```\n", "😀", "\t"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=60).map("".join), st.integers(1, 40))
def test_chunks_are_ordered_slices_that_cover_all_but_blanks(text, budget):
    chunks = chunk(text, EstimatedTokens(), budget)
    position = 0
    for number, found in enumerate(chunks):
        assert found.ordinal == number
        assert found.start >= position
        assert not text[position : found.start].strip()
        assert text[found.start : found.end] == found.text
        assert found.text.strip() == found.text != ""
        assert 1 <= found.token_count <= budget or len(found.text) == 1  # a character may be several tokens
        position = found.end
    assert not text[position:].strip()


def test_a_text_that_fits_is_one_chunk():
    (only,) = chunk("\n# Title\n\nBody.\n", EstimatedTokens(), 100)
    assert (only.text, only.heading_path) == ("# Title\n\nBody.", ())


def test_cuts_prefer_headings_then_paragraphs_then_lines_then_sentences():
    part = "Some words here. " * 3
    text = f"# One\n\n{part}\n\n## Two\n\n{part}\n{part}\n\n## Three\n\n{part}"
    chunks = chunk(text, EstimatedTokens(), 38)
    assert [found.text.split("\n")[0] for found in chunks] == ["# One", "## Two", "## Three"]
    assert [found.heading_path for found in chunks] == [(), ("One",), ("One",)]
    lines = chunk("\n".join(f"- item number {n}" for n in range(10)), EstimatedTokens(), 20)
    assert all(line.startswith("- item") for found in lines for line in found.text.splitlines())
    assert len(lines) > 1
    sentences = chunk("This is a sentence of some length. " * 10, EstimatedTokens(), 30)
    assert all(found.text.endswith(".") for found in sentences)


def test_a_heading_inside_code_is_no_heading():
    text = "# Real\n\n```\n# comment\n```\n\n" + "words and words " * 40
    assert chunk(text, EstimatedTokens(), 60)[-1].heading_path == ("Real",)


def test_deeper_headings_close_when_a_higher_one_opens():
    text = "# A\n\n## B\n\n### C\n\n" + "text " * 50 + "\n\n## D\n\n" + "more " * 50
    paths = [found.heading_path for found in chunk(text, EstimatedTokens(), 50)]
    assert ("A", "B", "C") in paths
    assert paths[-1] == ("A", "D")


def test_one_endless_word_is_cut_at_token_borders():
    chunks = chunk("ü" * 1000, EstimatedTokens(), 10)
    assert "".join(found.text for found in chunks) == "ü" * 1000
    assert max(found.token_count for found in chunks) <= 10
