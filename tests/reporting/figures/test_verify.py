"""What a verify pass costs: a line for each kind of weights."""

import numpy as np

from ddtree_core.reporting.figures.verify import verify_cost
from tests.reporting.figures.small_tables import VERIFY, texts


def test_a_line_for_each_kind_of_weights() -> None:
    figure = verify_cost(VERIFY)
    drawn = [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines]
    assert drawn == [[40.0, 50.0], [60.0, 80.0]]
    assert {"packed", "stock", "40", "50", "60", "80"} <= set(texts(figure))
