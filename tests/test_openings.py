"""The NumPy that opens a chapter, step*/attention.py, against step00's: one head, in float64.

    python3 tests/test_openings.py

Every such file whose attention() takes (Q, K, V, scale, causal) is tested; what its main() prints is
quoted by a page, and so checked with the pages.
"""
import importlib.util
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = [(1, 1), (33, 33), (64, 64), (37, 100), (100, 37), (1, 77), (77, 1)]    # Nq, Nk


def module(path):
    spec = importlib.util.spec_from_file_location(path.parent.name, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def inputs():
    """Q, K, V, scale, causal. The scale 3 makes logits of hundreds, whose exp no double can hold."""
    random = np.random.default_rng(0)
    for Nq, Nk in LENGTHS:
        for scale in 40**-0.5, 3:
            for causal in False, True:
                Q, K, V = (10 * random.standard_normal((n, 40)) for n in (Nq, Nk, Nk))
                yield Q, K, V, scale, causal


def main():
    right = module(ROOT / "step00_naive/attention.py").attention
    openings = {path: module(path) for path in sorted(ROOT.glob("step*/attention.py"))}
    tested = {path: opening for path, opening in openings.items() if hasattr(opening, "attention")}
    failed = 0
    for path, opening in tested.items():
        for n, case in enumerate(inputs()):
            for name, mine, wanted in zip(("O", "LSE"), opening.attention(*case), right(*case)):
                if not np.allclose(mine, wanted, rtol=1e-10, atol=1e-10):
                    print(f"{path.relative_to(ROOT)}: {name} is not step00's, case {n}: "
                          f"Nq {len(case[0])}, Nk {len(case[1])}, scale {case[3]:g}, causal {case[4]}")
                    failed += 1
    print(f"{len(tested)} NumPy openings tested, {failed} results are wrong")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
