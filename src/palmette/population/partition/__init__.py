"""Ways to deal a pool of samples out to devices.

Every partition depends on the pool's labels, the tree and the seed alone, ends after a bounded number of steps and says
clearly when what is asked cannot be had.
"""

from palmette.population.partition.base import Partition, Parts
from palmette.population.partition.dirichlet import Dirichlet
from palmette.population.partition.iid import Iid
from palmette.population.partition.labels import Labels
from palmette.population.partition.per_class import PerClass
from palmette.population.partition.registry import PARTITIONS, Few, make_partition, option_names
from palmette.population.partition.two_level import TwoLevel

__all__ = [
    "PARTITIONS",
    "Dirichlet",
    "Few",
    "Iid",
    "Labels",
    "Partition",
    "Parts",
    "PerClass",
    "TwoLevel",
    "make_partition",
    "option_names",
]
