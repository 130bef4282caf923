"""The command `quarry`. Start-up stays light: commands import what they need when they run."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from cli import bench, demo, entities, evaluation, jobs, model, schema, serve, service
from cli.errors import DONE, explain

INTERRUPTED = 130  # as shells say it: 128 and the number of SIGINT


class Group(TyperGroup):
    """Turns an error into one line and an exit status; a traceback only with --debug."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # Typer's own, and `quarry entities recipe | head`
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if _is_usage(error) or ctx.params.get("debug"):
                raise
            status, words = explain(error)
            Console(stderr=True, soft_wrap=True).print(f"quarry: {words}", style="red", markup=False, highlight=False)
            raise typer.Exit(status) from None


def _is_usage(error: Exception) -> bool:
    """Typer's own complaint about words on the command line, which it prints itself."""
    return hasattr(error, "show") and hasattr(error, "exit_code")


app = typer.Typer(
    cls=Group,
    name="quarry",
    help="Turns scraped documents into rows people can query. `quarry demo` shows it on the examples.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("quarry"))
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


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
    app()


if __name__ == "__main__":
    main()
