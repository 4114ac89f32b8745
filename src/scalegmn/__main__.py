"""`python -m scalegmn` is the command `scalegmn`."""

import os
import signal
from types import FrameType
from typing import NoReturn


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(130)


def main() -> NoReturn:
    """Run the command line; an interrupt while it loads, when there is nothing to tidy up, says no more than that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
