"""Where vLLM decides about draft tokens: found in its source by name and shape, not by line.

Every rule below says what a place looks like in the syntax tree (a function of a certain name, a statement or
an argument of a certain form), so that the same rules read every version and a place that is gone stays
absent from the result.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from ddtree_core.diagnosis.vllm.source import VllmSource, VllmSourceError

VERIFICATION = "verification"
POSITIONS = "positions"
TREE_MASK = "tree mask"
KV_SLOTS = "KV slots"
TREE_DRAFTING = "tree drafting"
RUNNER = "runner"

# Names of functions that decide which draft tokens are kept, now and under names a tree version may take.
_VERIFIES = re.compile(
    r"_?(?:\w+_)?rejection_(?:\w+_)?(?:sample|kernel|impl)"
    r"|_?(?:\w+_)?(?:tree_(?:walk|verify|verification|accept)|(?:verify|walk)_tree)(?:_\w+)?"
)
_TREE_ARGUMENT = re.compile(r"parent|child|ancestor|tree|retriev?e_(?:next|index)")
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_SNIPPET_LINES = 4  # of a function: its name and first arguments


@dataclass(frozen=True)
class Site:
    """One place in vLLM's source."""

    version: str
    topic: str
    what: str
    name: str  # of the enclosing function or class, behind the names that enclose it
    file: str
    line: int  # from 1
    arguments: tuple[str, ...]  # of a function
    takes_tree: bool  # whether one of them names parents, children or a tree
    snippet: str  # the first lines, as they are in the file


@dataclass(frozen=True)
class _Rule:
    """What a place looks like: its text matches `text`, and the names that enclose it match `inside`."""

    topic: str
    what: str
    text: str  # of a statement or keyword argument, as `ast.unparse` writes it; of a function, its bare name
    inside: str = ""
    function: bool = False


_RULES = (
    _Rule(
        POSITIONS,
        "V1 runner: positions of the verify pass",
        r".*num_computed_tokens_cpu.*positions_np"
        r"|positions_np = .*num_computed_tokens_cpu",
    ),
    _Rule(
        POSITIONS,
        "V2 runner: positions of the verify pass",
        r"pos = num_computed_tokens \+",
        "prepare_pos_seq",
    ),
    _Rule(POSITIONS, "positions while drafting a tree", r"draft_positions = positions \+", r"\bpropose_tree"),
    _Rule(TREE_MASK, "tree mask made once from the configured tree", r"self\.tree_attn_bias = _prepare"),
    _Rule(
        TREE_MASK,
        "metadata of the verify pass gets the tree mask",
        r"tree_attn_bias=",
        r"MetadataBuilder\.build$",
    ),
    _Rule(TREE_MASK, "attention gets the tree mask", r"qq_bias=.*tree"),
    _Rule(
        TREE_MASK,
        "attention that could take a mask over the query tokens",
        r"unified_attention",
        function=True,
    ),
    _Rule(KV_SLOTS, "number of rejected tokens", r"num_rejected = num_(?:draft_tokens|logits) -"),
    _Rule(KV_SLOTS, "rejected tokens are subtracted", r".*num_computed_tokens -= num_rejected"),
    _Rule(KV_SLOTS, "slots follow positions", r"_?compute_slot_mappings?(?:_kernel)?", function=True),
    _Rule(TREE_DRAFTING, "drafts a tree level by level", "propose_tree", function=True),
    _Rule(TREE_DRAFTING, "condition for drafting a tree", r"if .*isinstance\(.*TreeAttentionMetadata\)"),
    _Rule(TREE_DRAFTING, "setting of the tree", r"speculative_token_tree: ", "Config"),
    _Rule(TREE_DRAFTING, "tree is sorted breadth-first", r".*token_tree = .*sorted\(tree_choices"),
    _Rule(TREE_DRAFTING, "tree attention backend is registered", "TREE_ATTN = "),
    _Rule(TREE_DRAFTING, "tree attention backend is selected", r".*\.TREE_ATTN\b"),
    _Rule(RUNNER, "choice of the V2 runner", "VLLM_USE_V2_MODEL_RUNNER: "),
)


def find_sites(source: VllmSource) -> list[Site]:
    """Every place found in `source`, by topic, file and line; `pandas.DataFrame(sites)` makes a table.

    Raises VllmSourceError when a file cannot be parsed.
    """
    sites = []
    for file, text in source.files.items():
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise VllmSourceError(
                f"{file} of vLLM {source.version} is no Python that this interpreter reads ({error}); obtain "
                "it again"
            ) from error
        sites += _File(source.version, file, text.split("\n")).sites(tree)
    topics = [VERIFICATION, POSITIONS, TREE_MASK, KV_SLOTS, TREE_DRAFTING, RUNNER]
    return sorted(sites, key=lambda site: (topics.index(site.topic), site.file, site.line))


@dataclass(frozen=True)
class _File:
    version: str
    file: str
    lines: list[str]

    def sites(self, tree: ast.Module) -> Iterator[Site]:
        for node, inside in _walk(tree, ""):
            if isinstance(node, _FUNCTION):
                yield from self._of_function(node, inside)
            else:
                yield from self._of_place(node, inside)

    def _of_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, inside: str) -> Iterator[Site]:
        if _VERIFIES.fullmatch(node.name):
            runner, kind = _runner(self.file), "kernel" if is_kernel(node) else "function"
            yield self._site(VERIFICATION, f"{runner}: {kind}", inside, node)
            yield from self._comparisons(node, inside, runner)
        for rule in _RULES:
            if rule.function and re.fullmatch(rule.text, node.name):
                yield self._site(rule.topic, rule.what, inside, node)

    def _comparisons(self, function: ast.AST, inside: str, runner: str) -> Iterator[Site]:
        for node in ast.walk(function):
            if isinstance(node, ast.Compare):
                names = " ".join(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
                if "target" in names and "draft" in names:
                    yield self._site(VERIFICATION, f"{runner}: acceptance test", inside, node)

    def _of_place(self, node: ast.stmt | ast.keyword, inside: str) -> Iterator[Site]:
        text = _one_line(node)
        for rule in _RULES:
            if not rule.function and re.match(rule.text, text) and re.search(rule.inside, inside):
                yield self._site(rule.topic, rule.what, inside, node)

    def _site(self, topic: str, what: str, inside: str, node: ast.stmt | ast.expr | ast.keyword) -> Site:
        first, last = node.lineno, node.end_lineno or node.lineno
        arguments = argument_names(node) if isinstance(node, _FUNCTION) else ()
        takes_tree = any(_TREE_ARGUMENT.search(argument) for argument in arguments)
        shown = self.lines[first - 1 : min(last, first + _SNIPPET_LINES - 1)]
        snippet = textwrap.dedent("\n".join(shown))
        return Site(self.version, topic, what, inside, self.file, first, arguments, takes_tree, snippet)


def _walk(node: ast.AST, inside: str) -> Iterator[tuple[ast.stmt | ast.keyword, str]]:
    """Statements and keyword arguments with the dotted name of what encloses them (functions: their own)."""
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{child.name}".removeprefix(".")
        if isinstance(child, ast.stmt | ast.keyword) and not isinstance(child, ast.ClassDef):
            yield child, name
        yield from _walk(child, name)


def _one_line(node: ast.stmt | ast.keyword) -> str:
    if isinstance(node, ast.If | ast.While):
        return f"if {ast.unparse(node.test)}"
    if isinstance(node, ast.keyword):
        return f"{node.arg}={ast.unparse(node.value)}"
    if hasattr(node, "body"):
        return ""
    return ast.unparse(node)


def _runner(file: str) -> str:
    if "/utils/" in file or "/platforms/" in file:
        return "CPU form of V1"
    return "V2 runner" if "/worker/gpu/" in file or "/watermarking/" in file else "V1 runner"


def argument_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """Names of a function's arguments, in order."""
    parts = function.args
    return tuple(argument.arg for argument in [*parts.posonlyargs, *parts.args, *parts.kwonlyargs])


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the function is compiled by Triton: a decorator says `triton.jit`."""
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in function.decorator_list)
