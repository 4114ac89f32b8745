"""The command line: one file per command, each registering itself on `app`.

A command module reads `from scalegmn.cli.application import app, examples`, decorates its function with
`@app.command(epilog=examples("scalegmn NAME ..."))`, and imports what is heavy inside the function, so that
`scalegmn --help` stays quick. Then it is imported here.
"""

from typer.models import CommandInfo

from scalegmn.cli.application import app, main
from scalegmn.cli.experiments import bench, check, demo, report, reproduce, sweep, train  # noqa: F401
from scalegmn.cli.networks import balance, compare, dedupe, inspect, merge  # noqa: F401
from scalegmn.cli.trained import edit, embed, evaluate, export, models, predict  # noqa: F401
from scalegmn.cli.zoo import build, commands, imports  # noqa: F401

__all__ = ["app", "main"]

# The parts of `scalegmn --help`, in this order, by the folder of a command.
_PANELS = {"networks": "Your networks", "trained": "Trained models", "experiments": "Zoos, training and experiments"}


def _arrange() -> None:
    def part(command: CommandInfo) -> str:
        return getattr(command.callback, "__module__", "").split(".")[2]

    app.registered_commands.sort(key=lambda command: list(_PANELS).index(part(command)))
    for command in app.registered_commands:
        command.rich_help_panel = _PANELS[part(command)]
    for group in app.registered_groups:
        group.rich_help_panel = _PANELS["experiments"]


_arrange()
