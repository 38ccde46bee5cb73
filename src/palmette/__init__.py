"""Personalized federated learning on trees of machines: one model for everybody, one per team, one per device."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:  # what a user sees; loaded at first use below, so that `palmette --help` does not wait for torch
    from typing import Any

    from palmette import algorithms as algorithms
    from palmette import runs as runs
    from palmette import testing as testing
    from palmette.algorithms import ALGORITHMS as ALGORITHMS
    from palmette.algorithms import FedAvg as FedAvg
    from palmette.algorithms import HierFAVG as HierFAVG
    from palmette.algorithms import Ladder as Ladder
    from palmette.algorithms import Local as Local
    from palmette.algorithms import PerMFL as PerMFL
    from palmette.algorithms import PFedMT as PFedMT
    from palmette.algorithms import algorithm as algorithm
    from palmette.engines.evaluation import Scores as Scores
    from palmette.engines.evaluation import evaluate as evaluate
    from palmette.engines.simulate import Simulation as Simulation
    from palmette.errors import BadInput as BadInput
    from palmette.errors import Diverged as Diverged
    from palmette.errors import PalmetteError as PalmetteError
    from palmette.errors import PalmetteWarning as PalmetteWarning
    from palmette.errors import ProtocolError as ProtocolError
    from palmette.figures import figure as figure
    from palmette.learner import Batch as Batch
    from palmette.learner import Epochs as Epochs
    from palmette.learner import Mix as Mix
    from palmette.learner import Move as Move
    from palmette.learner import Optimiser as Optimiser
    from palmette.learner import Outputs as Outputs
    from palmette.learner.directions import Directions as Directions
    from palmette.links import Link as Link
    from palmette.links import Participation as Participation
    from palmette.page import write_report as write_report
    from palmette.population import Encoding as Encoding
    from palmette.population import Population as Population
    from palmette.population import load_population as load_population
    from palmette.population import make_population as make_population
    from palmette.protocol import Algorithm as Algorithm
    from palmette.protocol import Ask as Ask
    from palmette.protocol import Device as Device
    from palmette.protocol import Node as Node
    from palmette.protocol import PerChild as PerChild
    from palmette.protocol import Replies as Replies
    from palmette.protocol.settings import settings as settings
    from palmette.runs import Result as Result
    from palmette.runs import adapt as adapt
    from palmette.runs import export as export
    from palmette.runs import load as load
    from palmette.runs import predict as predict
    from palmette.runs import rerun as rerun
    from palmette.runs import resume as resume
    from palmette.runs import run as run
    from palmette.studies.advising.advice import Advice as Advice
    from palmette.studies.advising.advisor import advise as advise
    from palmette.studies.compare import compare as compare
    from palmette.studies.study import Study as Study
    from palmette.studies.sweep import sweep as sweep
    from palmette.tables import check_table as check_table
    from palmette.tables import read_dataset as read_dataset
    from palmette.tables import read_folders as read_folders
    from palmette.tables import read_table as read_table
    from palmette.task import Task as Task
    from palmette.task import make_task as make_task
    from palmette.task import models as models
    from palmette.task import parts as parts
    from palmette.theory.components import Components as Components
    from palmette.theory.components import components as components
    from palmette.track import Tracker as Tracker
    from palmette.tree import Tree as Tree

    __version__: str

# The modules the names above come from.
_HOMES = {
    "algorithms": "ALGORITHMS FedAvg HierFAVG Ladder Local PerMFL PFedMT algorithm",
    "engines.evaluation": "Scores evaluate",
    "engines.simulate": "Simulation",
    "errors": "BadInput Diverged PalmetteError PalmetteWarning ProtocolError",
    "figures": "figure",
    "learner": "Batch Epochs Mix Move Optimiser Outputs",
    "learner.directions": "Directions",
    "links": "Link Participation",
    "page": "write_report",
    "population": "Encoding Population load_population make_population",
    "protocol": "Algorithm Ask Device Node PerChild Replies",
    "protocol.settings": "settings",
    "runs": "Result adapt export load predict rerun resume run",
    "studies.advising.advice": "Advice",
    "studies.advising.advisor": "advise",
    "studies.compare": "compare",
    "studies.study": "Study",
    "studies.sweep": "sweep",
    "tables": "check_table read_dataset read_folders read_table",
    "task": "Task make_task",
    "theory.components": "Components components",
    "track": "Tracker",
    "tree": "Tree",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = {
    "algorithms": "algorithms",
    "models": "task.models",
    "parts": "task.parts",
    "runs": "runs",
    "testing": "testing",
}
__all__ = sorted([*_HOME_OF, *_MODULES])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("palmette")
    if name in _MODULES:
        return import_module(f"palmette.{_MODULES[name]}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'palmette' has no attribute {name!r}")
    return getattr(import_module(f"palmette.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
