"""``pegboard serve``."""

from __future__ import annotations

import typer

from pegboard_server_openai.command_line import parse
from pegboard_server_openai.running import serve_forever

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
        "ignore_unknown_options": True,
    }
)
def serve(context: typer.Context) -> None:
    """Serve a model over HTTP, as OpenAI's API."""
    raise typer.Exit(serve_forever(parse(context.args)))
