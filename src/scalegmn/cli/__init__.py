"""The command line: one file per command, each registering itself on `app`.

A command module reads `from scalegmn.cli.application import app, examples`, decorates its function with
`@app.command(epilog=examples("scalegmn NAME ..."))`, and imports what is heavy inside the function, so that
`scalegmn --help` stays quick. Then it is imported here.
"""

from scalegmn.cli import balance as balance
from scalegmn.cli import bench as bench
from scalegmn.cli import check as check
from scalegmn.cli import compare as compare
from scalegmn.cli import dedupe as dedupe
from scalegmn.cli import demo as demo
from scalegmn.cli import edit as edit
from scalegmn.cli import embed as embed
from scalegmn.cli import evaluate as evaluate
from scalegmn.cli import export as export
from scalegmn.cli import inspect as inspect
from scalegmn.cli import merge as merge
from scalegmn.cli import models as models
from scalegmn.cli import predict as predict
from scalegmn.cli import report as report
from scalegmn.cli import reproduce as reproduce
from scalegmn.cli import sweep as sweep
from scalegmn.cli import train as train
from scalegmn.cli import zoo as zoo
from scalegmn.cli import zoo_build as zoo_build
from scalegmn.cli import zoo_import as zoo_import
from scalegmn.cli.application import app, main

__all__ = ["app", "main"]
