import gzip
import io
import json

import pytest

from pipeline.load import HTML, JSONL, MARKDOWN, PDF, TEXT, XHTML, Rejected, SourceDocument, iter_sources, sniff

PAGE = b"<!DOCTYPE html><html><body><p>Hello</p></body></html>"


def load(*paths, **options):
    return list(iter_sources([str(path) for path in paths], **options))


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PAGE, HTML),
        (b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><body/></html>", XHTML),
        (b"<!-- made by hand -->\n<html lang=en><p>x", HTML),
        (b"<div><p>a</p><p>b</p></div>", HTML),
        (b"%PDF-1.7\n\x00\x01\x02", PDF),
        (b"# Title\n\nSome *text*.", MARKDOWN),
        (b"Plain words, 2 < 3 and 4 > 1.", TEXT),
        (b'{"url": "u", "text": "t"}\n{"url": "v", "text": "w"}\n', JSONL),
        (b'{"text": broken\n{"url": "v", "text": "w"}\n', JSONL),
        (b'{"said": one who\nnever wrote a record', TEXT),
        (b'{\n  "pretty": "printed"\n}', TEXT),
        ("Grüße".encode("utf-16-le"), TEXT),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), None),
    ],
)
def test_content_decides_what_a_file_is(data, media_type):
    assert sniff(data) == media_type


def test_a_folder_is_read_recursively_sorted_and_without_hidden_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b/two.html", "a.html", ".hidden.html", ".git/config.html"):
        (tmp_path / name).write_bytes(PAGE)
    assert [source.source_uri for source in load(tmp_path)] == [
        (tmp_path / name).as_uri() for name in ("a.html", "b/two.html")
    ]


def test_names_do_not_decide_and_the_rest_goes_on(tmp_path):
    (tmp_path / "page.pdf").write_bytes(PAGE)
    (tmp_path / "picture.html").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(500))
    (tmp_path / "void.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_bytes(b" \n\t ")
    found = load(tmp_path, tmp_path / "missing.html", tmp_path / "*.nothing")
    assert [getattr(source, "reason", None) or source.media_type for source in found] == [
        "empty",  # blank.txt
        HTML,  # page.pdf
        "binary",
        "empty",  # void.txt
        "missing",
        "no_match",
    ]
    assert "a PNG image" in found[2].detail


def test_globs_match_and_too_big_files_are_rejected_with_the_limit(tmp_path):
    (tmp_path / "1.txt").write_text("short")
    (tmp_path / "2.txt").write_text("long " * 100)
    small, big = load(tmp_path / "*.txt", max_bytes=100)
    assert isinstance(small, SourceDocument)
    assert (big.reason, "100 bytes" in big.detail) == ("too_big", True)


def test_gzip_is_opened_and_a_damaged_one_is_rejected(tmp_path):
    packed = gzip.compress(PAGE)
    (tmp_path / "1.html.gz").write_bytes(packed)
    (tmp_path / "2.html.gz").write_bytes(packed[:-12])
    whole, damaged = load(tmp_path)
    assert (whole.media_type, whole.data) == (HTML, PAGE)
    assert (type(damaged), damaged.reason) == (Rejected, "unreadable")


def test_a_small_gzip_that_unpacks_to_much_is_rejected(tmp_path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"text " * 1_000_000))
    assert [source.reason for source in load(tmp_path, max_bytes=1000)] == ["too_big"]


def test_a_dump_gives_a_document_per_line_and_rejects_bad_lines_by_number(tmp_path):
    lines = [
        {"url": "https://a.example/1", "html": "<p>one</p>", "fetched": "2020-01-01"},
        "{broken",
        {"url": "https://a.example/3", "text": "# Three\n\nmarked **down**"},
        {"url": "https://a.example/4", "title": "nothing else"},
        [1, 2],
        {"text": "no url"},
        {"url": "https://a.example/7", "text": "x" * 600},
        {"url": "https://a.example/8", "text": "half \ud83d, nul \x00"},
    ]
    dump = tmp_path / "dump.jsonl"
    dump.write_text("\n\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    found = load(dump, max_bytes=500)
    assert [getattr(source, "reason", None) or source.media_type for source in found] == [
        HTML, "bad_line", MARKDOWN, "bad_line", "bad_line", TEXT, "too_big", TEXT,
    ]  # fmt: skip
    assert found[0].source_uri == "https://a.example/1"
    assert found[0].metadata == {
        "charset": "utf-8", "line": 1, "url": "https://a.example/1", "fetched": "2020-01-01",
    }  # fmt: skip
    assert found[1].source_uri.endswith("#line=3")
    assert "line 3 is not JSON" in found[1].detail
    assert "its fields are: url, title" in found[3].detail
    assert found[5].source_uri == f"{dump.as_uri()}#line=11"
    assert found[7].data.decode() == "half \ufffd, nul "


def test_fields_can_be_renamed(tmp_path):
    dump = tmp_path / "dump.jsonl"
    dump.write_text(json.dumps({"link": "https://a.example", "body": "<p>x</p>"}) + "\n")
    (source,) = load(dump, fields={"url": "link", "html": "body"})
    assert (source.source_uri, source.media_type) == ("https://a.example", HTML)


def test_a_line_longer_than_any_document_is_skipped_whole(tmp_path):
    dump = tmp_path / "dump.jsonl"
    dump.write_text("\n".join(json.dumps({"text": text}) for text in ("first", "y" * 400_000, "last")))
    found = load(dump, max_bytes=1000)
    assert [getattr(source, "reason", "ok") for source in found] == ["ok", "too_big", "ok"]


def test_standard_input_is_read_once_as_document_or_dump():
    (page,) = load("-", stdin=io.BytesIO(PAGE))
    assert page.source_uri.startswith("stdin:")
    found = load("-", stdin=io.BytesIO(b'{"text": "a"}\n{"text": "b"}\n'))
    assert [source.data for source in found] == [b"a", b"b"]
    assert load("-")[0].reason == "unreadable"
