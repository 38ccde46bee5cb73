"""The command line as ``python -m palmette``."""

from palmette.cli.app import app

app(prog_name="palmette")
