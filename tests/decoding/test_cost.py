"""The cost of a verify pass: every size over the same history."""

from ddtree_core.decoding.cost import verify_seconds
from ddtree_core.models.target import Target


def test_verify_seconds_times_every_size_over_the_same_history(tiny_pair, monkeypatch):
    pair, seen = tiny_pair("tiny-sliding"), []
    pair.open_target()  # the first one of a model verifies a probe
    verify = Target.verify

    def watched(self, tree):
        seen.append((self.length, len(tree)))
        return verify(self, tree)

    monkeypatch.setattr(Target, "verify", watched)
    seconds = verify_seconds(pair, [1, 5, 9], history=40, repeats=3)
    assert list(seconds) == [1, 5, 9]
    assert all(value > 0 for value in seconds.values())
    assert seen == [(40, n) for _ in range(3 + 1) for n in (1, 5, 9)]  # the first turn warms up
