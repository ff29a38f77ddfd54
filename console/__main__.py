"""`python -m mulligan.console` is `mulligan`: the entry point, which imports only what is core."""

from __future__ import annotations

import sys

from mulligan.extras import explain_import

_BAD_INPUT = 2


def main() -> None:
    """Run the command line, or say which extra installs it."""
    try:
        from mulligan.console.cli.main import main as run
    except ModuleNotFoundError as error:
        explained = explain_import(error)
        if explained is None:
            raise
        print(f"the command line is an extra: {explained}", file=sys.stderr)
        sys.exit(_BAD_INPUT)
    run()


if __name__ == "__main__":
    main()
