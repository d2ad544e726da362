"""`python -m opslib.cli` is `opslib`."""

from opslib.cli.main import main

main()
