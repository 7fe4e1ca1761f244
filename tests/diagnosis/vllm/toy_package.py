"""A toy package under vLLM's name, as it lies in a folder or a wheel."""

from pathlib import Path

# A small package of our own under vLLM's name: one sampler, one sampler of trees, one file about neither.
SAMPLER = '''"""Toy."""


@triton.jit
def rejection_toy_kernel(out_ptr, draft_ptr, target_ptr):
    if draft != target:
        pass


class Sampler:
    def tree_verify(self, ids, *, parents):
        return ids


def sample_anything(logits):
    return logits
'''
PACKAGE = {
    "vllm/__init__.py": "",
    "vllm/v1/sampler.py": SAMPLER,
    "vllm/v1/other.py": "x = 1\n",
    "vllm/v1/data.txt": "rejection_sample",
    "../vllm/v1/escape.py": "rejection_sample = 1\n",  # no path of a package: must not be unpacked
}


def unpack(root: Path) -> Path:
    for name, text in PACKAGE.items():
        if ".." not in name:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root
