"""Who reports to whom: the tree, the ways to make one, and means over a node's children."""

from palmette.tree.planting import Ints as Ints
from palmette.tree.tree import Tree as Tree
from palmette.tree.view import view as view
