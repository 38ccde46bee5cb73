"""Trackers: where a run's numbers go besides its folder. TensorBoard, Weights & Biases, MLflow, or one's own."""

from palmette.track.tracker import Place as Place
from palmette.track.tracker import Start as Start
from palmette.track.tracker import Tracker as Tracker
