"""Populations: the samples of every device, how they were dealt out, and the tree over the devices."""

from palmette.datasets import Pool, load
from palmette.population.build import make_population
from palmette.population.encoding import Encoding, Input
from palmette.population.partition import PARTITIONS, Dirichlet, Few, Iid, Labels, Partition
from palmette.population.population import Population
from palmette.population.saved import load_population
from palmette.population.teams import FORMATIONS, SHIFTS

__all__ = [
    "FORMATIONS",
    "PARTITIONS",
    "SHIFTS",
    "Dirichlet",
    "Encoding",
    "Few",
    "Iid",
    "Input",
    "Labels",
    "Partition",
    "Pool",
    "Population",
    "load",
    "load_population",
    "make_population",
]
