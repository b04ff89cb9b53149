"""Chat, batch files and load tests from Pegboard's command line."""

from __future__ import annotations

from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"command": 0}


@hookimpl
def pegboard_commands() -> tuple[Command, ...]:
    """What talks to a server, or to a model as a server would."""
    return (
        Command("chat", "Talk with a model, local or served", "pegboard_client.chat:chat"),
        Command("complete", "Let a model go on with texts", "pegboard_client.chat:complete"),
        Command("run-batch", "Answer a batch file", "pegboard_client.run_batch:run_batch"),
        Command(
            "bench serve",
            "Measure a server under load, as its clients see it",
            "pegboard_client.bench_serve:bench_serve",
        ),
        Command(
            "bench throughput",
            "Measure how fast a model answers many requests without a server",
            "pegboard_client.bench_throughput:bench_throughput",
        ),
    )
