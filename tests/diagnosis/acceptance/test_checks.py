"""What measures speak for."""

from dataclasses import replace

import pytest

from ddtree_core.diagnosis.acceptance.checks import cache_findings
from ddtree_core.diagnosis.acceptance.context_cache import CacheMeasures

HEALTHY = CacheMeasures(0.0, (0.9, 0.9), (0.4, 0.4), 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("cause", "measures"),
    [
        ("", HEALTHY),
        ("", replace(HEALTHY, beginning=(0.0, 0.0))),  # windows hide the beginning from scratch, too
        ("stale context", replace(HEALTHY, earlier=0.7, prompt=(0.0, 0.9), first=0.8)),
        ("context missing", replace(HEALTHY, prompt=(0.0, 0.9), beginning=(0.0, 0.4), first=0.9)),
        ("context cut", replace(HEALTHY, beginning=(0.0, 0.4), first=0.5)),
        ("added mask", replace(HEALTHY, prompt=(0.7, 0.9), first=0.1, later=0.1)),
        ("added mask", replace(HEALTHY, first=0.015, later=0.04)),  # which a long context dilutes
        ("cache not cropped", replace(HEALTHY, later=0.5)),
    ],
)
def test_what_distances_speak_for(cause: str, measures: CacheMeasures):
    """One cause for each pattern, by what it leaves in the cache; rounding (0.01) speaks for none."""
    measures = replace(measures, earlier=measures.earlier + 0.01, later=measures.later + 0.01)
    found = [finding.cause for finding in cache_findings(measures, 0.02) if finding.suspicious]
    assert found == ([cause] if cause else [])
