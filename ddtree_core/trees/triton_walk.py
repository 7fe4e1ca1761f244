"""The batched tree walk as a Triton kernel, one program per request; `batch_walk` checks what it is given.

Importing this module imports triton, which is optional and slow to import. On a CPU the kernel runs in
Triton's interpreter, if TRITON_INTERPRET=1 is set before triton is imported.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit(do_not_specialize=["total", "max_length"])
def walk_kernel(tokens, parents, cu_nodes, targets, nodes, lengths, bonus, total, max_length):
    """One program walks one request; its length is -1 if the offsets are wrong, 0 if the parents are."""
    # Nodes compared at once. Triton reads the annotation, which means nothing to a type checker.
    block: tl.constexpr = 128  # pyright: ignore
    request, last_request = tl.program_id(0).to(tl.int64), tl.num_programs(0) - 1
    start = tl.load(cu_nodes + request).to(tl.int64)
    end = tl.load(cu_nodes + request + 1).to(tl.int64)
    fits = (start >= 0) & (start < end) & (end <= total)
    fits = fits & ((request > 0) | (start == 0)) & ((request < last_request) | (end == total))
    size = tl.where(fits, end - start, 0).to(tl.int32)
    path = nodes + request * max_length
    tl.store(path, 0)
    node, length, faults = 0, 1, 0
    # A child comes after its parent, so the walk never turns back to an earlier block: each is read once.
    for first in range(0, size, block):
        index = first + tl.arange(0, block)
        inside = index < size
        parent = tl.load(parents + start + index, mask=inside, other=-1)
        is_child = inside & (parent >= 0) & (parent < index)
        is_root = (index == 0) & (parent == -1)
        faults += tl.sum((inside != (is_child | is_root)).to(tl.int32))
        token = tl.load(tokens + start + index, mask=is_child, other=-1)
        choice = tl.load(targets + start + parent, mask=is_child, other=-1)
        chosen_at = tl.where(is_child & (token == choice), parent, -1).to(tl.int32)
        child = tl.min(tl.where(chosen_at == node, index, size))  # `size` means that there is none
        while (child < size) & (length < max_length):
            tl.store(path + length, child)
            node = child
            length += 1
            child = tl.min(tl.where(chosen_at == node, index, size))
    for first in range(0, max_length, block):
        place = first + tl.arange(0, block)
        tl.store(path + place, -1, mask=(place >= length) & (place < max_length))
    tl.store(bonus + request, tl.load(targets + start + node, mask=fits, other=-1))
    tl.store(lengths + request, tl.where(fits, tl.where(faults > 0, 0, length), -1))


INTERPRETED = not isinstance(walk_kernel, triton.JITFunction)
