"""The command `quarry`. Start-up stays light: commands import what they need when they run."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from cli import bench, demo, entities, evaluation, jobs, model, schema, serve, service

DONE, FAILED, WRONG_USE = 0, 1, 2


class Group(TyperGroup):
    """Turns the errors that a person can act on into one line and an exit status; a traceback only with --debug."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            status = _status(error)
            if status is None or ctx.params.get("debug"):
                raise
            Console(stderr=True, soft_wrap=True).print(f"quarry: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(status) from None


def _status(error: Exception) -> int | None:
    """2 for wrong use, 1 for what is down or broken, None for a mistake of the program."""
    from cli.output import UsageError
    from db.readonly import QueryError
    from inference.catalogue import CatalogueError
    from pipeline.client import NotFound, Unavailable
    from pipeline.errors import PipelineError
    from pipeline.schema import SchemaError
    from pipeline.settings import NotConfigured

    if isinstance(error, UsageError | NotFound | SchemaError | QueryError | CatalogueError):
        return WRONG_USE
    if isinstance(error, NotConfigured | Unavailable | PipelineError | service.ServiceError):
        return FAILED
    return WRONG_USE if type(error) is ValueError else None


app = typer.Typer(
    cls=Group,
    name="quarry",
    help="Turns scraped documents into rows people can query.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("quarry"))
        raise typer.Exit


demo.register(app)
service.register(app)
app.add_typer(schema.app, name="schema", rich_help_panel="Jobs")
jobs.register(app)
entities.register(app)
evaluation.register(app)
app.add_typer(model.app, name="model", rich_help_panel="Engine")
serve.register(app)
app.add_typer(bench.app, name="bench", rich_help_panel="Engine")


def main() -> None:
    """Entry point."""
    try:
        app()
    except BrokenPipeError:  # `quarry entities recipe | head`
        sys.stderr.close()
        sys.exit(DONE)


if __name__ == "__main__":
    main()
