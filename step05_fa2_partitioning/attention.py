#!/usr/bin/python3
"""FlashAttention-2's forward for one head in NumPy, with the rescaling put off as in rung 5.

    /usr/bin/python3 step05_fa2_partitioning/attention.py      how often it rescales
"""
import importlib.util
from pathlib import Path

import numpy as np


#> attention
def attention(Q, K, V, scale, causal, Br=16, Bc=64, most=8, rescaled=lambda yes: None):
    """Q [Nq, d], K and V [Nk, d]; returns O and LSE. Each turn of the outer loop is a block, or a warp, of its own."""
    Nq, Nk, c = len(Q), len(K), scale * np.log2(np.e)  # 2^(c S - c m) is e^(scale S - scale m)
    O, LSE = np.empty_like(Q), np.empty(Nq)
    for i in range(0, Nq, Br):
        q, end = Q[i:i + Br], min(i + Br, Nq) + Nk - Nq
        o, m, l = np.zeros_like(q), np.full(len(q), -np.inf), np.zeros(len(q))
        for j in range(0, max(0, end) if causal else Nk, Bc):
            S = q @ K[j:j + Bc].T  # neither scaled nor rounded
            if causal and i + Nk - Nq < j + Bc - 1:  # the first query does not see the last key
                S[~np.tri(*S.shape, i + Nk - Nq - j, dtype=bool)] = -np.inf
            m_new = np.maximum(m, S.max(axis=1))
            grown = m_new > m + most / c  # not, if both are -inf
            rescaled(grown.any())
            if grown.any():  # all rows of the tile together
                factor = np.exp2(c * (m - safe(m_new)))
                o, l, m = factor[:, None] * o, factor * l, m_new
            P = np.exp2(c * S - c * safe(m)[:, None])  # at most 2^most
            o, l = o + P @ V[j:j + Bc], l + P.sum(axis=1)
        O[i:i + Br] = o / np.where(l > 0, l, 1)[:, None]  # once
        LSE[i:i + Br] = scale * m + log(l)
    return O, LSE
#< attention


def safe(m):
    """Where no key has been seen, m is -inf, and -inf - (-inf) is not a number: measure from 0."""
    return np.where(np.isneginf(m), 0, m)


def log(l):
    with np.errstate(divide="ignore"):
        return np.log(l)


def main():
    spec = importlib.util.spec_from_file_location("step00", Path(__file__).parents[1] / "step00_naive/attention.py")
    step00 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step00)
    random, N, d = np.random.default_rng(0), 1024, 64
    Q, K, V = random.standard_normal((3, N, d))
    rising = K + Q.mean(axis=0) * np.arange(N)[:, None]  # each tile of keys raises the maxima of many rows
    print("keys     rescale when a maximum grew   tiles of S that rescale")
    for name, keys in ("normal", K), ("rising", rising):
        right = step00.attention(Q, keys, V, d**-0.5, False)[0]
        for most, text in (0, "at all"), (8, "by more than 8 in log2"):
            turns = []
            O, _ = attention(Q, keys, V, d**-0.5, False, most=most, rescaled=turns.append)
            np.testing.assert_allclose(O, right, rtol=0, atol=1e-12)
            print(f"{name}   {text:22s} {sum(turns):17d} of {len(turns)}")
    print("O is step00's to within 1e-12 each time")


if __name__ == "__main__":
    main()
