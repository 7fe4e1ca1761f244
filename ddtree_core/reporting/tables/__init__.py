"""Statistics of runs, tables ready to be read, and sentences made from them."""

from ddtree_core.reporting.tables.display import readable, side_by_side, styled, text_table
from ddtree_core.reporting.tables.plain_text import code_span

__all__ = ["code_span", "readable", "side_by_side", "styled", "text_table"]
