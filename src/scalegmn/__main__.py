"""`python -m scalegmn` is the command `scalegmn`."""

from .cli import main

if __name__ == "__main__":
    main()
