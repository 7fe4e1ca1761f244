"""Causes of low acceptance, faults that inject them, and the autopsy that finds them."""

from ddtree_core.diagnosis.acceptance.autopsy import Autopsy, autopsy
from ddtree_core.diagnosis.acceptance.causes import CAUSES
from ddtree_core.diagnosis.acceptance.confusion import confusion
from ddtree_core.diagnosis.acceptance.faults import FAULTS, NotApplicable, inject
from ddtree_core.diagnosis.acceptance.wiring import wiring_of

__all__ = ["CAUSES", "FAULTS", "Autopsy", "NotApplicable", "autopsy", "confusion", "inject", "wiring_of"]
