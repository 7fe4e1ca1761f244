"""Published mean acceptance lengths, to set beside measured ones.

Figures of several data sets together carry "mean" as their data set; other drafters for the same target are
named as the method. A user's report is told as such.
"""

from ddtree_core.models.pair_spec import PublishedTau

_DFLASH = "DFlash, arXiv 2602.06036"
_JETSPEC = "JetSpec, arXiv 2606.18394"
_SPARK = "independent, bfloat16 on a DGX Spark"


def _chains(dflash: tuple[float, float], eagle: tuple[float, float]) -> tuple[PublishedTau, ...]:
    """DFlash and EAGLE-3 (a tree of 60 nodes) at temperatures 0 and 1, means over the paper's data sets."""
    return tuple(
        PublishedTau("mean", method, tau, _DFLASH, budget, temperature)
        for method, budget, taus in (("dflash", None, dflash), ("EAGLE-3", 60, eagle))
        for temperature, tau in zip((0.0, 1.0), taus, strict=True)
    )


PUBLISHED_TAU: dict[str, tuple[PublishedTau, ...]] = {
    "qwen3-4b": (
        *_chains((6.54, 5.69), (3.48, 3.36)),
        PublishedTau("GSM8K", "ddtree", 9.08, "independent, hxri/ddtreeplus, RTX 6000 Pro", 128),
    ),
    "qwen3-8b": (
        *_chains((6.49, 5.48), (3.40, 3.26)),
        *(
            PublishedTau(dataset, "JetSpec", tau, _JETSPEC, 256)
            for dataset, tau in (
                ("MATH-500", 9.64),
                ("GSM8K", 7.82),
                ("AIME25", 8.78),
                ("HumanEval", 7.12),
                ("MBPP", 6.73),
                ("LCB", 7.67),
                ("MT-Bench", 4.58),
            )
        ),
    ),
    "qwen3-coder-30b-a3b": tuple(
        PublishedTau(dataset, method, tau, _SPARK, budget, None)
        for dataset, method, budget, tau in (
            ("code", "dflash", None, 7.96),
            ("code", "ddtree", 64, 9.74),
            ("code", "ddtree", 256, 10.50),
            ("chat", "dflash", None, 2.25),
            ("chat", "ddtree", 64, 3.22),
            ("chat", "ddtree", 256, 3.69),
        )
    ),
    "qwen3.5-35b-a3b": (
        PublishedTau(
            "math, thinking", "dflash", 9.49, "user's report z-lab/dflash#60, 4-bit target", None, None
        ),
    ),
}
