"""`python -m mulligan.console` is `mulligan`."""

from mulligan.console.cli.main import main

if __name__ == "__main__":
    main()
