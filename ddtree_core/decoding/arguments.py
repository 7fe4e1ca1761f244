"""What a user may give for a number or a text: Python's, numpy's and torch's scalars, and no booleans."""

from math import inf, nan
from numbers import Integral, Real


def whole_number(value: object) -> int | None:
    """A whole number as `int`; None for anything else.

    >>> whole_number(5), whole_number(5.0), whole_number(True)
    (5, None, None)
    """
    value = _scalar(value)
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def real_number(value: object) -> float:
    """A number as `float`; nan for anything else."""
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return nan
    try:
        return float(value)
    except OverflowError:
        return inf


def is_text(value: object) -> bool:
    """Whether it is a string that can be encoded: half a surrogate pair cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def shown(value: object) -> str:
    """A value for a message: on one line, and not longer than one."""
    line = " ".join(repr(value).split())
    return line if len(line) <= 60 else line[:59] + "…"


def _scalar(value: object) -> object:
    """The Python number in a numpy scalar or a tensor without dimensions; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value  # pyright: ignore[reportAttributeAccessIssue]
