"""The gated delta rule over a draft tree, in one pass and without a state per node.

A Gated-DeltaNet head keeps a state S (dk, dv). A token with key k, value v, log decay g ≤ 0 and rate β decays
the state and writes to it what k does not read from it yet; its query q then reads the result:

    S ← e^g S        u = β (v − Sᵀk)        S ← S + k uᵀ        o = Sᵀq

so that a state is the decayed context plus the decayed sum of k uᵀ over the tokens since. In a tree, node i
sees the context S0 and its ancestors. With A[i, j] = "j is i or an ancestor of i", c_i the sum of g along the
root path of i, and D_ij = A[i, j] e^(sum of g on the path below j down to i), what node i reads with a key is

    e^(c_i) S0ᵀk_i + Σ_(j above i) D_ij (k_i · k_j) u_j

and the updates u of all nodes solve one unit lower triangular system, parents coming before children:

    (I + L) U = β (V − e^c (K S0)),  L_ij = β_i D_ij (k_i · k_j) for j above i
    O = e^c (Q S0) + (D ∘ Q Kᵀ) U

A committed path then moves the state to e^(Σg) S0 + Σ_j e^(sum of g after j) k_j u_jᵀ. The same idea is known
as TreeWY (arXiv 2608.20961). D comes from sums of g along paths, all of one sign; neither differences of c
(which cancel) nor e^(c_i) e^(−c_j) (which overflows) are formed.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TreeStash:
    """What a verified tree of N nodes leaves in one layer: enough to commit any path, and no state per node.

    `rows` are the inputs of the convolution; all else is float32 at least, as a rounded stash would end up in
    the state. Key heads are kept once for the value heads that share them.
    """

    keys: Float[Tensor, "batch key_heads N dk"]
    updates: Float[Tensor, "batch heads N dv"]
    log_decays: Float[Tensor, "batch heads N"]
    rows: Float[Tensor, "batch N channels"]

    def __getitem__(self, nodes: Int[Tensor, "m"]) -> "TreeStash":
        """The same for some nodes, in that order."""
        keys, updates, log_decays = (t[:, :, nodes] for t in (self.keys, self.updates, self.log_decays))
        return TreeStash(keys, updates, log_decays, self.rows[:, nodes])

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the stash holds on to."""
        tensors = (self.keys, self.updates, self.log_decays, self.rows)
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def tree_delta_rule(
    state: Float[Tensor, "batch heads dk dv"],
    queries: Float[Tensor, "batch key_heads N dk"],
    keys: Float[Tensor, "batch key_heads N dk"],
    values: Float[Tensor, "batch heads N dv"],
    log_decays: Float[Tensor, "batch heads N"],
    rates: Float[Tensor, "batch heads N"],
    ancestors: Bool[Tensor, "N N"],
) -> tuple[Float[Tensor, "batch heads N dv"], Float[Tensor, "batch heads N dv"]]:
    """Outputs of all nodes, and the updates u that a commit needs.

    `queries` and `keys` are normalised (and scaled) already; consecutive value heads share a key head.
    `ancestors[i, j]` is true where j is i or an ancestor of it, and parents come before children.
    """
    queries, keys = (_per_value_head(t, values.shape[1]) for t in (queries, keys))
    from_context, decays = _tree_decays(log_decays, ancestors)
    among = keys.transpose(-1, -2)
    overlaps = (keys @ among) * decays * rates[..., None]
    missing = rates[..., None] * (values - from_context[..., None] * (keys @ state))
    updates = torch.linalg.solve_triangular(overlaps, missing, upper=False, unitriangular=True)
    outputs = from_context[..., None] * (queries @ state) + ((queries @ among) * decays) @ updates
    return outputs, updates


def _tree_decays(
    log_decays: Float[Tensor, "batch heads N"], ancestors: Bool[Tensor, "N N"]
) -> tuple[Float[Tensor, "batch heads N"], Float[Tensor, "batch heads N N"]]:
    """e^c, the decay from the context to each node, and D, that from each ancestor to each node (else 0)."""
    mask = ancestors.to(log_decays.dtype)
    along = log_decays[..., None, :] * mask  # g_l where l is on the root path of i
    between = along @ (mask - torch.eye(len(mask), dtype=mask.dtype, device=mask.device))
    return along.sum(-1).exp(), between.masked_fill_(~ancestors, float("-inf")).exp_()


def path_state(
    state: Float[Tensor, "batch heads dk dv"],
    keys: Float[Tensor, "batch key_heads m dk"],
    updates: Float[Tensor, "batch heads m dv"],
    log_decays: Float[Tensor, "batch heads m"],
) -> Float[Tensor, "batch heads dk dv"]:
    """The state behind a path of m nodes, from the state in front of it and what `tree_delta_rule` gave."""
    keys = _per_value_head(keys, updates.shape[1])
    from_here = log_decays.flip(-1).cumsum(-1).flip(-1)  # Σ over this node and those after it
    after = torch.nn.functional.pad(from_here[..., 1:], (0, 1))
    decayed = keys * after.exp()[..., None]
    return from_here[..., :1, None].exp() * state + decayed.transpose(-1, -2) @ updates


def _per_value_head(tensor: Tensor, heads: int) -> Tensor:
    shared = heads // tensor.shape[1]
    return tensor if shared == 1 else tensor.repeat_interleave(shared, dim=1)


def conv_table(parents: Int[Tensor, "N"], kernel: int) -> Int[Tensor, "kernel N"]:
    """For each tap of a causal convolution and each node, the row that it reads in [`kernel` rows of context;
    N rows of nodes]: the last tap the node itself, the one before its parent, and so on into the context.

    >>> conv_table(torch.tensor([-1, 0, 0, 1]), kernel=3).tolist()
    [[1, 2, 2, 3], [2, 3, 3, 4], [3, 4, 5, 6]]
    """
    # Row k − 1 is the last of the context and the parent of the root; row 0 is never reached.
    context = torch.arange(-1, kernel - 1, device=parents.device).clamp_(min=0)
    above = torch.cat([context, parents + kernel])
    taps = [torch.arange(kernel, len(above), device=parents.device)]
    for _ in range(kernel - 1):
        taps.append(above[taps[-1]])
    return torch.stack(taps[::-1])


def tree_conv(
    context: Float[Tensor, "batch kernel channels"],
    rows: Float[Tensor, "batch N channels"],
    weight: Float[Tensor, "channels kernel"],
    table: Int[Tensor, "kernel N"],
) -> Float[Tensor, "batch N channels"]:
    """Depthwise causal convolution along every root path, rounded to the dtype of `rows` once, at the end."""
    buffer = torch.cat([context.to(rows.dtype), rows], dim=1)
    wide = torch.promote_types(rows.dtype, torch.float32)
    taps = weight.to(wide).unbind(1)
    mixed = rows.to(wide) * taps[-1]
    for tap, index in zip(taps[:-1], table[:-1], strict=True):
        mixed.addcmul_(buffer.index_select(1, index).to(wide), tap)
    return mixed.to(rows.dtype)
