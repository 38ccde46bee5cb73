"""Figures for papers: runs and studies drawn in one style, each with its numbers as CSV."""

from palmette.figures.make import figure as figure
