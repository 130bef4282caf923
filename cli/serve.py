"""`quarry serve`: the engine alone."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Engine", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
        serve
    )


def serve(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help="A name, a .gguf file or a folder; default: QUARRY_MODEL.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
) -> None:
    """Run the engine in the foreground: an OpenAI-compatible server for one model and the embedder.

    Further flags go to the engine as they are; `python -m inference.server --help` lists them.

    Example: quarry serve --port 8000 --max-num-seqs 16
    """
    from cli.output import err
    from cli.service import pull_model
    from inference.server.__main__ import main
    from pipeline.settings import get_settings

    settings = get_settings()
    chosen = pull_model(model or settings.model, settings, err())
    embedder = pull_model(settings.embedder, settings, err())
    flags = ["--model", chosen, "--embedder", embedder, "--home", str(settings.home)]
    flags += ["--host", host, "--port", str(port), "--device", settings.device]
    flags += ["--dtype", settings.dtype, "--quantization", settings.quantization]
    raise typer.Exit(main([*flags, *context.args]))
