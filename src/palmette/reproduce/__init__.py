"""Experiments of the papers, run again: each is a file of data, and one engine (`conduct`) runs them all."""

from palmette.reproduce.experiment import Experiment as Experiment
from palmette.reproduce.reading import names as names
from palmette.reproduce.reading import own_names as own_names
from palmette.reproduce.reading import read as read
