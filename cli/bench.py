"""`quarry bench`: figures beside a ceiling or a rival, measured in the same run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import UsageError
from cli.output import err

app = typer.Typer(no_args_is_help=True, help="Benchmarks, each beside a rival or a ceiling from the same run.")


@app.command()
def engine(
    model: Annotated[str | None, typer.Option(help="A name, a .gguf file or a folder; default: QUARRY_MODEL.")] = None,
    mix: Annotated[
        list[str] | None, typer.Option(help="extraction (JSON on every request), seed, decode, mixed [default: all].")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many requests a round.")] = 32,
    concurrency: Annotated[int, typer.Option(min=1, help="How many of them at once.")] = 32,
    shrink: Annotated[float, typer.Option(min=0.1, help="Divides the lengths, which are a GPU's.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="The median of so many counts.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the workload.")] = 1,
    quantization: Annotated[str, typer.Option(help="How our weights are kept: auto, none, fp16, int8.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Of each engine [default: one a core].")] = None,
    rival: Annotated[list[str] | None, typer.Option(help="llama.cpp, transformers, or none [default: both].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """The engine beside `transformers.generate` and llama.cpp: same weights, prompts and output lengths.

    Takes less than ten minutes on two cores; `--shrink 1` gives the lengths of real pages and takes hours there.

    Example: quarry bench engine --mix extraction --shrink 4 --rounds 3
    """
    from bench.engine import Plan, run
    from bench.workloads import MIXES
    from cli.service import pull_model
    from inference.catalogue import locate
    from pipeline.settings import get_settings

    settings = get_settings()
    default = Plan()
    plan = Plan(
        mixes=_among(mix or default.mixes, MIXES, "mix"),
        requests=requests,
        concurrency=concurrency,
        shrink=shrink,
        rounds=rounds,
        seed=seed,
        quantization=quantization,
        threads=threads or default.threads,
        rivals=_among([r for r in rival or default.rivals if r != "none"], default.rivals, "rival"),
    )
    name = pull_model(model or settings.model, settings, err())
    run(locate(name, settings.home), plan, as_json=as_json)


def _among(chosen: Sequence[str], known: Collection[str], what: str) -> Sequence[str]:
    if wrong := [name for name in chosen if name not in known]:
        raise UsageError(f"{what} is {wrong[0]!r}; it must be one of {', '.join(known)}")
    return chosen


@app.command()
def dispatch(
    model: Annotated[str | None, typer.Option(help="A name, a .gguf file or a folder; default: QUARRY_MODEL.")] = None,
    requests: Annotated[int, typer.Option(min=100, help="How many, one after the other.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What the way through front, core and back costs without the model, beside a bare echo.

    Example: quarry bench dispatch --model smollm2-135m-instruct
    """
    from bench.dispatch import run
    from cli.service import pull_model
    from inference.catalogue import locate
    from pipeline.settings import get_settings

    settings = get_settings()
    name = pull_model(model or settings.model, settings, err())
    run(locate(name, settings.home), requests=requests, as_json=as_json)


@app.command()
def speculation(
    folder: Annotated[list[str], typer.Argument(help="Pages: files, folders, globs.")],
    schema: Annotated[Path, typer.Option(help="A file with a JSON Schema.", exists=True, dir_okay=False)],
    model: Annotated[str | None, typer.Option(help="A name, a .gguf file or a folder; default: QUARRY_MODEL.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="A smaller model of the same vocabulary.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Requests at a time [default: 1, 8 and 32].")] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many pages, at most.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="The median of so many counts.")] = 3,
    prompt_tokens: Annotated[int, typer.Option(min=16, help="Tokens of a page that are read.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tokens per forward and time with drafts of each kind, beside plain decoding.

    Example: quarry bench speculation examples/recipes --schema examples/schemas/recipe.json --batch 1
    """
    from bench.speculation import run
    from cli.service import pull_model
    from inference.catalogue import locate
    from pipeline.schema import ExtractionSchema
    from pipeline.settings import get_settings

    settings = get_settings()

    def found(name: str) -> Path:
        return locate(pull_model(name, settings, err()), settings.home)

    run(
        found(model or settings.model),
        folder,
        ExtractionSchema.parse(schema.stem, schema.read_text()),
        draft_model=found(draft_model) if draft_model else None,
        batches=batch or (1, 8, 32),
        requests=requests,
        rounds=rounds,
        prompt_tokens=prompt_tokens,
        as_json=as_json,
    )


@app.command()
def pipeline(
    folder: Annotated[list[str], typer.Argument(help="Pages: files, folders, globs.")],
    schema: Annotated[str, typer.Option(help="The name of a registered schema.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Documents per second, where the time goes, and what database and queue add. Needs `quarry up`.

    Example: quarry bench pipeline examples/recipes --schema recipe
    """
    from bench.pipeline import run
    from pipeline.settings import get_settings

    if missing := [path for path in folder if not Path(path).exists() and not any(c in path for c in "*?[")]:
        raise UsageError(f"{', '.join(missing)}: no such file or folder")
    run(folder, schema=schema, settings=get_settings(), as_json=as_json)


@app.command()
def ground(
    folder: Annotated[Path, typer.Argument(help="Subsets of re3d: folders with documents.jsonl and entities.jsonl.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """How many gold strings get their exact span, and how long each takes, beside LangExtract's resolver.

    Example: quarry bench ground ~/data/re3d
    """
    from bench.ground import BadGold, run

    try:
        run(folder, as_json=as_json)
    except BadGold as error:
        raise UsageError(str(error)) from None
