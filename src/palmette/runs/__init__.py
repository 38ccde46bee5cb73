"""Runs: start one, continue one, read one back."""

from palmette.runs.adapting import Adapted as Adapted
from palmette.runs.adapting import adapt as adapt
from palmette.runs.calling import run as run
from palmette.runs.config import RunConfig as RunConfig
from palmette.runs.execution import Execution as Execution
from palmette.runs.execution import Interrupted as Interrupted
from palmette.runs.execution import Observer as Observer
from palmette.runs.exporting import export as export
from palmette.runs.predicting import Predictions as Predictions
from palmette.runs.predicting import predict as predict
from palmette.runs.preparing import prepare as prepare
from palmette.runs.reading import make_config as make_config
from palmette.runs.reading import read_config as read_config
from palmette.runs.result import Result as Result
from palmette.runs.result import load as load
from palmette.runs.resuming import resume as resume
from palmette.runs.running import Exist as Exist
from palmette.runs.running import check_exist as check_exist
from palmette.runs.running import execute as execute
from palmette.runs.running import rerun as rerun
from palmette.runs.verify import Verification as Verification
from palmette.runs.verify import verify as verify
