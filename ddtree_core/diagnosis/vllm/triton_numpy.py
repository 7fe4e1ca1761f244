"""A numpy stand-in for the few primitives of `triton.language` that vLLM's acceptance kernels use.

Those kernels read and write one number at a time, so a pointer is an array with an offset, and a launch is a
loop over the grid. Everything else of Triton is missing on purpose: a kernel that needs more is refused with
a sentence, never run half-right.
"""

import ast
import operator
from typing import Any

import numpy as np

DTYPES = ("int1", "int8", "int16", "int32", "int64", "float32", "float64")


class StandInError(RuntimeError):
    """The kernel does what the stand-in cannot do, or reaches outside its arrays."""


class Value(np.ndarray):
    """A loaded number: an array without dimensions, which keeps its dtype in arithmetic as in Triton."""

    def to(self, dtype: type) -> "Value":
        return self.astype(dtype).view(Value)


class Pointer:
    """An array seen flat, and an offset into it."""

    def __init__(self, array: np.ndarray, offset: int = 0) -> None:
        self.array, self.offset = array.reshape(-1), offset
        if not np.shares_memory(self.array, array) and array.size:
            raise StandInError(f"a kernel cannot write to an array with gaps, strides {array.strides}")

    def __add__(self, steps: Any) -> "Pointer":
        return Pointer(self.array, self.offset + operator.index(steps))

    def __sub__(self, steps: Any) -> "Pointer":
        return self + -operator.index(steps)

    @property
    def dtype(self) -> "Pointer":  # `pointer.dtype.element_ty`, as Triton spells the type of what is stored
        return self

    @property
    def element_ty(self) -> type:
        return self.array.dtype.type

    def checked(self) -> int:
        if not 0 <= self.offset < self.array.size:
            raise StandInError(f"the kernel reaches element {self.offset} of an array of {self.array.size}")
        return self.offset


class Language:
    """What the kernel knows as `tl`."""

    constexpr = int

    def __init__(self) -> None:
        self.program = 0
        for name in DTYPES:
            setattr(self, name, np.dtype("bool" if name == "int1" else name).type)

    def __getattr__(self, name: str) -> Any:
        raise StandInError(f"the numpy stand-in has no tl.{name}; install triton to run this kernel")

    def program_id(self, axis: int) -> int:
        return self.program if axis == 0 else 0

    def load(self, pointer: Pointer) -> Value:
        return np.array(pointer.array[pointer.checked()]).view(Value)

    def store(self, pointer: Pointer, value: Any) -> None:
        pointer.array[pointer.checked()] = value

    def zeros(self, shape: Any, dtype: type) -> Value:
        return np.zeros(tuple(shape), dtype).view(Value)


def run(source: str, grid: int, arguments: dict[str, Any], file: str = "<kernel>", line: int = 1) -> None:
    """Run the kernel in `source` (one function; decorators and annotations are dropped) for the programs
    0 … grid - 1. Arrays among the arguments are written in place. `file` and `line` say where the source
    came from, so that a traceback points there.

    Raises StandInError.
    """
    module = ast.parse(source)
    (kernel,) = module.body
    if not isinstance(kernel, ast.FunctionDef):
        raise StandInError(f"{file} line {line} is not a function")
    kernel.decorator_list = []
    for argument in [*kernel.args.args, *kernel.args.kwonlyargs]:
        argument.annotation = None
    ast.increment_lineno(module, line - 1)
    language = Language()
    names: dict[str, Any] = {"tl": language}
    exec(compile(module, file, "exec"), names)
    passed = {k: Pointer(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    for language.program in range(grid):
        names[kernel.name](**passed)
