"""The command line: one file per command, each registering itself on `app`.

A command module reads `from scalegmn.cli.application import app, examples`, decorates its function with
`@app.command(epilog=examples("scalegmn NAME ..."))`, and imports what is heavy inside the function, so that
`scalegmn --help` stays quick. Then it is imported here.
"""

from scalegmn.cli import train as train
from scalegmn.cli.application import app, main

__all__ = ["app", "main"]
