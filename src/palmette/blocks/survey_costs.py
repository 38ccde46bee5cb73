"""What a survey costs on every link: exchanges and bytes, counted from what its messages hold (`palmette.blocks.survey`)."""

from __future__ import annotations

from palmette.blocks.seen import Shape
from palmette.blocks.surveyed import Told
from palmette.blocks.variances import tried
from palmette.task.layout import Layout
from palmette.tree import Tree


def exchanges(settled: int, tree: Tree) -> tuple[int, int]:
    """Return how many exchanges the server makes, and how many a team makes with its devices.

    Args:
        settled: How often everybody settles its own parameters.
        tree: The tree.
    """
    looks = len(tried(tree))
    # Every inner node looks once more before it settles, and those above the lowest pass that on.
    return 1 + looks + 2 * settled, 1 + looks + (tree.top + 1) * settled


def carried(tree: Tree, layout: Layout, *, settled: int, moments: bool) -> list[tuple[int, int]]:
    """Return what a survey costs on every link, the devices' first: exchanges, and bytes both ways.

    Args:
        tree: The tree.
        layout: The model's.
        settled: How often everybody settles its own parameters.
        moments: Whether devices tell their own moments.
    """
    shape, tiers = Shape.of(layout), tree.top
    looked = tried(tree)
    points = [one.points for one in looked]
    model = 0 if shape.alone else 4 * layout.width
    frame = 4 * shape.features * shape.kept + model
    ratios, found = 8 * tiers * shape.size, 8 * (shape.size * shape.columns + shape.size * (shape.size + 1) // 2)
    costs = []
    for tier in range(tiers):
        looks = tiers - tier  # before everybody settles: the server's, and those of inner nodes above this link
        many, one = ([8 * (count * (shape.moments + 2) + 2) for count in counts] for counts in (points, [1]))
        if tier == 0 and moments:
            many, one = [4 * (shape.moments + 2)] * len(points), [4 * (shape.moments + 2)]
        elif tier == 0:
            many = [8 * (each.devices * (shape.moments + 2) + 2) for each in looked]
        each = model + 4 * (2 + shape.features * shape.sketch)
        each += frame + sum(8 * count * tiers + up for count, up in zip(points, many, strict=True))
        each += settled * (looks * (ratios + one[0]) + ratios + found + 8 * Told.width(tiers, shape)) + frame
        asked = 1 + len(points) + settled * (looks + 1)
        each += 8 * (2 * asked + 1)  # the numbers in messages: what is asked, of how many points, the scale, the noise
        costs.append((asked * tree.size(tier + 1), each * tree.size(tier)))
    return costs
