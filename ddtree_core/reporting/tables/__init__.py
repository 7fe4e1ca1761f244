"""Statistics of runs, tables ready to be read, and sentences made from them."""

from ddtree_core.reporting.tables.display import readable

__all__ = ["readable"]
