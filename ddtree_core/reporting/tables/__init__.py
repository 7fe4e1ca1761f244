"""Statistics of runs, tables ready to be read, and sentences made from them."""

from ddtree_core.reporting.tables.display import code_span, readable, side_by_side, styled, text_table

__all__ = ["code_span", "readable", "side_by_side", "styled", "text_table"]
