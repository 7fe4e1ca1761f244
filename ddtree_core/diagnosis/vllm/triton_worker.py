"""A process that runs Triton kernels for another: in the interpreter on a CPU, or natively on a GPU.

Triton decides at its import whether it interprets, so the choice needs a process of its own. This file is
started as a script by `kernels`, with a folder for kernels as its argument, and imports nothing of this
package; requests and answers are pickles, each preceded by its length, and the process ends when its standard
input does.
"""

import hashlib
import importlib
import importlib.util
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

# Triton finds the text of a function in its file, so the kernel needs one.
HEADER = "import triton\nimport triton.language as tl\n\n\n"


def send(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next message; None at the end of the stream."""
    length = stream.read(8)
    return pickle.loads(stream.read(*struct.unpack("<q", length))) if len(length) == 8 else None


def load_kernel(source: str, name: str, folder: Path) -> Any:
    """The kernel `name` of `source`, decorated by the real Triton."""
    module_name = f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    if module_name not in sys.modules:
        file = folder / f"{module_name}.py"
        file.write_text(HEADER + source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[module_name] = module
    return getattr(sys.modules[module_name], name)


def run(request: dict[str, Any], folder: Path, device: str) -> dict[str, np.ndarray]:
    """Run one kernel; the arrays among its arguments as they are afterwards."""
    kernel = load_kernel(request["source"], request["name"], folder)
    arguments = {
        name: torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value
        for name, value in request["arguments"].items()
    }
    kernel[(request["grid"],)](**arguments)
    return {name: v.cpu().numpy() for name, v in arguments.items() if isinstance(v, torch.Tensor)}


def main() -> None:
    # What a kernel or Triton prints must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            send(answers, run(request, Path(sys.argv[1]), device))
        except Exception as error:
            send(answers, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
