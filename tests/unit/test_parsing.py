"""Documents are read in child processes: the same text, and a killer costs only itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.clean import clean
from pipeline.errors import DocumentError, TransientError
from pipeline.parsing import ParserLimits, ParserPool
from pipeline.parsing.wire import BrokenFrame, header_of, pack, read_frame

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cleaners() -> Iterator[ParserPool]:
    pool = ParserPool("pipeline.parsing.cleaning", ParserLimits())
    yield pool
    pool.close()


@pytest.fixture
def killers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ParserPool]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pool = ParserPool("tests.killers", ParserLimits(seconds=0.5, memory_bytes=64 * 2**20))
    yield pool
    pool.close()


def read(pool: ParserPool, what: str) -> str:
    return pool.clean(what.encode(), "text/plain").text


@pytest.mark.parametrize(
    ("data", "media_type", "charset"),
    [
        (b"<html lang=de><title>T</title><p>Ein Text mit <b>Fett</b>, 2 < 3.", "text/html", None),
        ("# Ünï \U0001f600\n\ntext".encode(), "text/markdown", None),
        ("caf\xe9 \x00 ok".encode("latin-1"), "text/plain", "iso-8859-1"),
        ((ROOT / "examples/postgres/sacred_texts_of_postgres.pdf").read_bytes(), "application/pdf", None),
    ],
)
def test_a_child_gives_what_the_call_gives(
    cleaners: ParserPool, data: bytes, media_type: str, charset: str | None
) -> None:
    assert cleaners.clean(data, media_type, charset=charset) == clean(data, media_type, charset=charset)


def test_errors_of_documents_come_back_as_they_are(cleaners: ParserPool) -> None:
    with pytest.raises(DocumentError) as caught:
        cleaners.clean(b"%PDF-1.4 broken", "application/pdf")
    assert caught.value.reason == "unreadable"


@pytest.mark.parametrize(
    ("what", "reason", "words"),
    [
        ("sleep", "too_slow", "more than 0.5 s"),
        ("spin", "too_slow", "QUARRY_PARSE_SECONDS"),
        ("allocate", "too_much_memory", "64 MiB"),
        ("crash", "parser_crashed", "SIGSEGV"),
        ("nonsense", "parser_crashed", "nonsense"),
        ("fault", "unreadable", "ZeroDivisionError"),
        ("deep", "too_deep", "nested"),
    ],
)
def test_a_killer_costs_only_itself(killers: ParserPool, what: str, reason: str, words: str) -> None:
    assert read(killers, "before").startswith("before")
    with pytest.raises(DocumentError, match=words) as caught:
        read(killers, what)
    assert caught.value.reason == reason
    assert read(killers, "after").startswith("after")


def test_what_an_earlier_document_did_to_a_parser_is_not_put_on_a_later_one(killers: ParserPool) -> None:
    before = read(killers, "before").split()[1]
    name, pid = read(killers, "crash-when-used").split()
    assert name == "crash-when-used"
    assert pid != before


def test_a_parser_that_someone_ended_is_no_fault_of_its_document(killers: ParserPool) -> None:
    with pytest.raises(TransientError, match="SIGTERM"):
        read(killers, "terminated")


def test_what_a_killer_started_ends_with_it(killers: ParserPool, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(DocumentError, match=r"0\.5 s"):
        read(killers, f"family {note}")
    pid = int(note.read_text())
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_parser_is_used_again_until_it_has_read_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pool = ParserPool("tests.killers", ParserLimits(documents=2))
    pids = [read(pool, "x").split()[1] for _ in range(4)]
    pool.close()
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_what_libraries_print_is_no_answer(killers: ParserPool) -> None:
    assert read(killers, "print").startswith("print")


def test_parsers_hold_no_secrets(killers: ParserPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_DATABASE_URL", "postgresql://me:secret@host/db")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "secret")
    monkeypatch.setenv("QUARRY_SUPERVISED", "home:ingest")
    names = read(killers, "environment").split()[0].split(",")
    assert "PATH" in names
    assert [name for name in names if name.startswith(("QUARRY", "LANGFUSE"))] == ["QUARRY_SUPERVISED"]


def test_threads_get_parsers_of_their_own(killers: ParserPool) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda n=n: found.append(read(killers, f"n{n}"))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(text.split()[0] for text in found) == ["n0", "n1", "n2", "n3"]


def test_a_closed_pool_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pool = ParserPool("tests.killers", ParserLimits())
    pid = int(read(pool, "x").split()[1])
    pool.close()
    assert not psutil.pid_exists(pid)


def test_broken_frames_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    path.write_bytes(pack({"a": "\ud800"}, b"xy") + b"xy" + pack({}, b"xy") + b"x")
    with path.open("rb") as stream:
        assert read_frame(stream) == ({"a": "\ud800"}, b"xy")
        with pytest.raises(BrokenFrame):
            read_frame(stream)
    for header in (b"[1]", b"{", b"\xff"):
        with pytest.raises(BrokenFrame):
            header_of(header)
