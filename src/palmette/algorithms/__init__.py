"""The algorithms, one file each, and how to make one by name."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from palmette.algorithms.al2sgd import AL2SGD as AL2SGD
from palmette.algorithms.apfl import APFL as APFL
from palmette.algorithms.cfl import CFL as CFL
from palmette.algorithms.demlearn import DemLearn as DemLearn
from palmette.algorithms.ditto import Ditto as Ditto
from palmette.algorithms.edge_mixing import EdgeMixing as EdgeMixing
from palmette.algorithms.fedala import FedALA as FedALA
from palmette.algorithms.fedamp import FedAMP as FedAMP
from palmette.algorithms.fedamp import HeurFedAMP as HeurFedAMP
from palmette.algorithms.fedavg import FedAvg as FedAvg
from palmette.algorithms.fedbuff import FedBuff as FedBuff
from palmette.algorithms.fedfomo import FedFomo as FedFomo
from palmette.algorithms.fedopt import FedAdagrad as FedAdagrad
from palmette.algorithms.fedopt import FedAdam as FedAdam
from palmette.algorithms.fedopt import FedAvgM as FedAvgM
from palmette.algorithms.fedopt import FedYogi as FedYogi
from palmette.algorithms.fedprox import FedProx as FedProx
from palmette.algorithms.groupperfl import FL as FL
from palmette.algorithms.groupperfl import GroupFL as GroupFL
from palmette.algorithms.groupperfl import GroupPerFL as GroupPerFL
from palmette.algorithms.groupperfl import PerFL as PerFL
from palmette.algorithms.hierfavg import HierFAVG as HierFAVG
from palmette.algorithms.ifca import IFCA as IFCA
from palmette.algorithms.installed import installed, load, path_of
from palmette.algorithms.l2gd import L2GD as L2GD
from palmette.algorithms.l2gd_coin import L2GDCoin as L2GDCoin
from palmette.algorithms.ladder import Ladder as Ladder
from palmette.algorithms.local import Local as Local
from palmette.algorithms.mtgc import MTGC as MTGC
from palmette.algorithms.own_parts import FedBABU as FedBABU
from palmette.algorithms.own_parts import FedPer as FedPer
from palmette.algorithms.own_parts import FedRep as FedRep
from palmette.algorithms.own_parts import LGFedAvg as LGFedAvg
from palmette.algorithms.per_fedavg import PerFedAvg as PerFedAvg
from palmette.algorithms.permfl import PerMFL as PerMFL
from palmette.algorithms.pfedbayes import PFedBayes as PFedBayes
from palmette.algorithms.pfedgp import PFedGP as PFedGP
from palmette.algorithms.pfedme import PFedMe as PFedMe
from palmette.algorithms.pfedmt import PFedMT as PFedMT
from palmette.algorithms.scaffold import Scaffold as Scaffold
from palmette.algorithms.sfedhp import SFedHP as SFedHP
from palmette.errors import BadInput, nearest, nearest_few
from palmette.files import is_file
from palmette.protocol import Algorithm, ModelKind
from palmette.protocol.importing import import_algorithm, whole_path
from palmette.protocol.settings import build

FAMILIES: dict[str, tuple[type[Algorithm], ...]] = {
    "Personal models on a tree of teams": (
        *(PerMFL, PFedMT, SFedHP, Ladder),
        *(GroupFL, GroupPerFL),
        *(L2GD, L2GDCoin, AL2SGD),
        EdgeMixing,
    ),
    "One model, made by averaging": (
        *(FedAvg, FL),
        *(FedProx, Scaffold),
        *(FedAvgM, FedAdagrad, FedAdam, FedYogi),
        HierFAVG,
        MTGC,
        FedBuff,
    ),
    "Personal models without teams": (
        Local,
        PerFL,
        *(FedAMP, HeurFedAMP),
        *(Ditto, PFedMe, PFedBayes, APFL, PerFedAvg),
        *(FedFomo, FedALA),
    ),
    "Teams that are found": (
        IFCA,
        CFL,
        DemLearn,
    ),
    "Own parts of the model": (FedPer, FedRep, FedBABU, LGFedAvg, PFedGP),
}
"""What there is, family by family, in the order in which users see it."""

OWN, INSTALLED = "Of your own", "Installed beside Palmette"
"""The families of algorithms that are none of Palmette's: by import path or file, and by the name in another package."""

ALGORITHMS: dict[str, type[Algorithm]] = {kind.name: kind for kinds in FAMILIES.values() for kind in kinds}
"""The class of every algorithm of Palmette, by its name on the command line."""


def kind_of(name: str) -> type[Algorithm]:
    """Return an algorithm's class by its name, or one of the user's own: by import path, file, or installed name."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if ":" in name or is_file(name):
        kind = import_algorithm(name)
    elif name in installed():
        kind = load(name)
    else:
        raise BadInput(_unknown(name))
    check_name(kind)
    return kind


def source_of(name: str) -> str:
    """Return where an algorithm of the user's own comes from, also from another folder; nothing for one of Palmette's."""
    if name in ALGORITHMS:
        return ""
    return whole_path(name) if ":" in name or is_file(name) else path_of(name) if name in installed() else ""


def _unknown(name: str) -> str:
    """Say that there is no such algorithm, and what may be meant."""
    if Path(f"{name}.py").is_file():
        return f"unknown algorithm {name!r}. If the file {name}.py is meant, write {name}.py"
    own = " Write an algorithm of your own as its import path, my_module:MyMethod." if "." in name else ""
    known = [*ALGORITHMS, *installed()]
    return f"unknown algorithm {name!r}{nearest_few(name, known)}{own} All there are: palmette list algorithms"


def algorithm(name: str, *, preset: str | None = None, **settings: Any) -> Algorithm:
    """Make an algorithm by name.

    Args:
        name: A name of `ALGORITHMS` or of an algorithm that another package brings; or an algorithm of your own by its import
            path, ``"my_module:MyMethod"``, or its file, ``"./mine.py"``.
        preset: A named set of settings, such as ``"published"``; single settings override it.
        **settings: Settings of the algorithm.
    """
    kind = kind_of(name)
    if preset is not None and not (isinstance(preset, str) and preset in kind.presets):
        raise BadInput(f"{name} has no preset {preset!r}{nearest(str(preset), kind.presets) if kind.presets else ''}")
    chosen = {} if preset is None else dict(kind.presets[preset])
    return build(kind, name, {**chosen, **settings})


def family_of(name: str) -> str:
    """Return the family that an algorithm is shown in."""
    if name not in ALGORITHMS:
        return INSTALLED if name in installed() else OWN
    return next(family for family, kinds in FAMILIES.items() if ALGORITHMS[name] in kinds)


def models_of(kind: type[Algorithm]) -> tuple[ModelKind, ...]:
    """Return the kinds of models that an algorithm makes with its default settings; none where some have no default."""
    if any(field.default is MISSING and field.default_factory is MISSING for field in fields(kind)):  # type: ignore[arg-type]
        return ()
    return kind().models


def check_name(kind: type[Algorithm]) -> None:
    """Refuse an algorithm of one's own that is named like one of Palmette's: results would be taken for the other's."""
    if ALGORITHMS.get(kind.name, kind) is not kind:
        raise BadInput(
            f"{kind.__name__} is named {kind.name!r}, and so is an algorithm of Palmette: give it another name, "
            f'as in `name: ClassVar[str] = "my-{kind.name}"`'
        )
