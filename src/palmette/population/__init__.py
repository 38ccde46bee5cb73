"""Populations: the samples of every device, how they were dealt out, and the tree over the devices."""

from palmette.datasets import Pool, load
from palmette.population.build import make_population
from palmette.population.encoding import Encoding, Input
from palmette.population.found import find_teams
from palmette.population.partition import PARTITIONS, Dirichlet, Few, Iid, Labels, Partition, PerClass, TwoLevel
from palmette.population.population import Population
from palmette.population.saved import load_population
from palmette.population.scores import Found, agreement, silhouette
from palmette.population.shifts import SHIFTS
from palmette.population.signatures import signatures
from palmette.population.teams import FORMATIONS

__all__ = [
    "FORMATIONS",
    "PARTITIONS",
    "SHIFTS",
    "Dirichlet",
    "Encoding",
    "Few",
    "Found",
    "Iid",
    "Input",
    "Labels",
    "Partition",
    "PerClass",
    "Pool",
    "Population",
    "TwoLevel",
    "agreement",
    "find_teams",
    "load",
    "load_population",
    "make_population",
    "signatures",
    "silhouette",
]
