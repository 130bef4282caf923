"""`quarry model`: which models there are, getting one, looking into one."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.output import Format, FormatOption, err, print_rows

app = typer.Typer(no_args_is_help=True, help="List, pull and inspect models.")


@app.command("list")
def list_(format: FormatOption = Format.TABLE) -> None:
    """The catalogue, and what of it is here.

    Example: quarry model list
    """
    from inference.catalogue import list_models
    from pipeline.settings import get_settings

    settings = get_settings()
    rows = []
    for entry in list_models(settings.home):
        model = entry.model
        rows.append(
            {
                "name": model.name,
                "kind": model.kind,
                "parameters": model.parameters,
                "quantisation": model.quantisation,
                "MiB": round(model.size / 2**20),
                "licence": model.licence,
                "here": entry.path is not None,
                "in use": model.name in (settings.model, settings.embedder),
            }
        )
    print_rows(list(rows[0]), rows, format, right=("MiB",))


@app.command()
def pull(name: Annotated[str, typer.Argument(help="A name from `quarry model list`.")]) -> None:
    """Download a model, verify it and put it under QUARRY_HOME/models. A broken download goes on where it stopped.

    Example: quarry model pull qwen2.5-coder-1.5b-instruct
    """
    from cli.service import pull_model
    from inference.catalogue import find, model_dir
    from pipeline.settings import get_settings

    settings = get_settings()
    got = pull_model(find(name).name, settings, err())
    typer.echo(model_dir(got, settings.home))


@app.command()
def inspect(
    name: Annotated[str, typer.Argument(help="A pulled model's name, a .gguf file or a safetensors folder.")],
    memory_gib: Annotated[float, typer.Option("--memory-gib", min=0.1, help="Memory to plan for.")] = 8.0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Shape, tensors, memory, and how many tokens of cache a memory budget leaves.

    Example: quarry model inspect qwen2.5-coder-0.5b-instruct --memory-gib 4
    """
    from inference.catalogue import locate
    from inference.inspection import inspect as look
    from pipeline.settings import get_settings

    found = look(locate(name, get_settings().home))
    config = found.config
    left = int(memory_gib * 2**30) - found.weight_bytes
    facts = {
        "path": str(found.path),
        "architecture": config.family,
        "parameters": found.parameters,
        "layers": config.num_layers,
        "hidden size": config.hidden_size,
        "query heads": config.num_heads,
        "KV heads": config.num_kv_heads,
        "head size": config.head_dim,
        "vocabulary": config.vocab_size,
        "context": config.max_position_embeddings,
        "weights in bf16, MiB": round(found.weight_bytes / 2**20),
        "KV bytes per token": found.kv_bytes_per_token,
        f"tokens of cache in {memory_gib:g} GiB": max(0, found.tokens_in(left)),
    }
    for kind, (count, size) in found.tensors.items():
        facts[f"tensors stored as {kind}"] = count
        facts[f"MiB stored as {kind}"] = round(size / 2**20, 1)
    print_rows(("property", "value"), [{"property": k, "value": v} for k, v in facts.items()], format)
