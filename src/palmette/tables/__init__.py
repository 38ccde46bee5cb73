"""A user's own data: read, checked and packed into populations."""

from palmette.tables.check import Check, check_table
from palmette.tables.folders import read_folders
from palmette.tables.given import read_dataset
from palmette.tables.open import is_code, is_own, label_of, open_data, options_of_tables
from palmette.tables.read import read_table

__all__ = [
    "Check",
    "check_table",
    "is_code",
    "is_own",
    "label_of",
    "open_data",
    "options_of_tables",
    "read_dataset",
    "read_folders",
    "read_table",
]
