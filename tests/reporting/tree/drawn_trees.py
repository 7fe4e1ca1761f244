"""Trees and rounds to draw, and what a drawing of them shows."""

import math
import random
import xml.etree.ElementTree as ET

import torch

from ddtree_core.decoding.records import Round
from ddtree_core.trees import Acceptance, DraftTree

SVG = "{http://www.w3.org/2000/svg}"


def make_tree(parents: list[int], log_probs: list[float] | None = None) -> DraftTree:
    """A tree from its parents; token ids are the node indices, each step has probability 1/2 unless given."""
    depths = [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        depths[node] = depths[parent] + 1
    if log_probs is None:
        log_probs = [depth * math.log(0.5) for depth in depths]
    ids = torch.arange(len(parents))
    return DraftTree(ids, torch.tensor(parents), torch.tensor(depths), torch.tensor(log_probs))


def random_tree(nodes: int, seed: int) -> DraftTree:
    source = random.Random(seed)
    log_probs, parents = [0.0], [-1]
    for node in range(1, nodes):
        parents.append(source.randrange(max(0, node - 12), node))
        log_probs.append(log_probs[parents[-1]] + math.log(source.uniform(0.01, 1)))
    return make_tree(parents, log_probs)


def make_round(tree: DraftTree, path: list[int], bonus: int = 99, index: int = 1) -> Round:
    tokens = Acceptance(path, bonus).tokens(tree)
    return Round(index, tree, [bonus] * len(tree), path, tokens, {"draft": 0.002, "verify": 0.07})


# root 0 with children 1 and 2, 1 with children 3 and 4, 2 with child 5
SMALL = make_tree([-1, 0, 0, 1, 1, 2])


def boxes(svg: str) -> dict[int, tuple[float, float, float, float]]:
    """(x, y, width, height) of every node's box as drawn, by node index."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        if "data-node" in group.attrib:
            x, y = group.attrib["transform"].removeprefix("translate(").removesuffix(")").split(",")
            box = group.find(f"{SVG}rect")
            assert box is not None
            size = float(box.attrib["width"]), float(box.attrib["height"])
            found[int(group.attrib["data-node"])] = (float(x), float(y), *size)
    return found


def states(svg: str) -> dict[str, set[int]]:
    """Node indices drawn in each state."""
    groups = [group for group in ET.fromstring(svg).iter(f"{SVG}g") if "data-state" in group.attrib]
    return {group.attrib["data-state"]: {int(g.attrib["data-node"]) for g in group} for group in groups}


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]
