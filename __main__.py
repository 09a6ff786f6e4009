"""`python -m dubito`, the same as the command `dubito`."""

from .cli import main

if __name__ == "__main__":
    main()
