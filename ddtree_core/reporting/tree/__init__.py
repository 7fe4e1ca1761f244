"""The tree visualiser: a draft tree as SVG, and a widget that steps through the rounds of a generation."""

from ddtree_core.reporting.tree.svg import rounds_svg, tree_svg
from ddtree_core.reporting.tree.view import TreeView

__all__ = ["TreeView", "rounds_svg", "tree_svg"]
