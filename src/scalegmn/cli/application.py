"""The typer application, and the only place that turns exceptions into a line on stderr and an exit code."""

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..errors import ScaleGMNError

OK, INTERNAL_ERROR, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

_PLUGINS = "SCALEGMN_PLUGINS"
# ClickException, the base of all usage errors; typer exports only this descendant of it.
_UsageError: Any = typer.BadParameter.__mro__[2]


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__
        from ..native.build import backend

        typer.echo(f"scalegmn {__version__}\nbackend: {backend()}")
        raise typer.Exit()


def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and the backend.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.py",
            envvar=_PLUGINS,
            help="Run this file first: methods, datasets and tables of your own. May be repeated.",
        ),
    ] = None,
) -> None:
    """Metanetworks: neural networks that read the weights of other neural networks."""
    if plugin:
        from ..files import real_path

        _load_plugins([str(real_path(path) if path.suffix == ".py" else path) for path in plugin])


def _load_plugins(names: Sequence[str]) -> None:
    from .sources import import_code

    for name in names:
        import_code(name, f"--plugin {name}")
    # Commands that train in processes of their own start those with the same plugins.
    os.environ[_PLUGINS] = os.pathsep.join(names)


def create_app() -> typer.Typer:
    """An application with the global options and no commands."""
    app = typer.Typer(name="scalegmn", rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.callback(epilog=examples("scalegmn COMMAND --help"))(_global_options)
    return app


def examples(*lines: str) -> str:
    r"""The end of a command's help: its examples, one on each line.

    >>> examples("scalegmn inspect model.pt")
    'Example:\n\nscalegmn inspect model.pt'
    """
    from rich.markup import escape

    return "\n\n".join(["Example:" if len(lines) == 1 else "Examples:", *map(escape, lines)])


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code.

    The code is 0 for success, 1 for a bug of ours or a closed pipe, 2 for bad input or usage, 130 for an interrupt.

    Arguments:
        app: The application whose command is run.
        arguments: The words after the program's name; `--debug` may be anywhere before `--`.
    """
    arguments, debug = _take_debug(arguments)
    try:
        command = typer.main.get_command(app)
        # Without standalone mode an early exit is returned as its code; commands themselves return None.
        code = command.main(args=arguments or ["--help"], prog_name="scalegmn", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:
            # An interrupt reaches us as the exit that typer makes of it.
            return _fail(INTERRUPTED, "interrupted", debug)
        return code if isinstance(code, int) else OK
    except ScaleGMNError as error:
        return _fail(BAD_INPUT, f"error: {error}", debug)
    except _UsageError as error:
        return _fail(BAD_INPUT, f"error: {error.format_message()}{_help_hint(error)}", debug=False)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(INTERRUPTED, "interrupted", debug)
    except BrokenPipeError:
        # The reader went away; the interpreter must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERNAL_ERROR
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return _fail(BAD_INPUT, f"error: {where}{error.strerror or error}", debug)
    except Exception as error:
        if _lacks_memory(error):
            return _fail(BAD_INPUT, f"error: not enough memory ({str(error)[:120]}); ask for less", debug)
        hint = "" if debug else " (run again with --debug for the traceback)"
        return _fail(INTERNAL_ERROR, f"internal error: {type(error).__name__}: {error}{hint}", debug)


def _lacks_memory(error: Exception) -> bool:
    """Whether memory ran out; torch has no exception of its own for that on the CPU."""
    words = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in str(error) for w in words))


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word != "--debug"]
    return options + words[end:], len(options) < end


def _help_hint(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f" (see {context.command_path} --help)" if context is not None else ""


def _fail(code: int, message: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    typer.echo(" ".join(message.split()), err=True)
    return code


app = create_app()


def main() -> NoReturn:
    """Run the command line of this process; SIGTERM counts as an interrupt, so that child processes end too."""
    try:
        _answer_signals(signal.default_int_handler)
        code = run(app, sys.argv[1:])
        _answer_signals(signal.SIG_IGN)
    except KeyboardInterrupt:
        # It came before the command began, or while its end was reported.
        _answer_signals(signal.SIG_IGN)
        code = _fail(INTERRUPTED, "interrupted", debug=False)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # One of several processes: threads of torch.distributed may call Python while it shuts down, which would abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _answer_signals(answer: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, answer)
