#!/usr/bin/python3
"""One head in NumPy, with the products in FlashAttention-3's order: rung 4's.

    /usr/bin/python3 step06_hopper_tma_fp8/attention.py      is it step00's?
"""
import importlib.util
from pathlib import Path

import numpy as np


#> attention
def attention(Q, K, V, scale, causal, Br=16, Bc=16):
    """Q [Nq, d], K and V [Nk, d]; returns O and LSE. Each turn of the outer loop is a warpgroup of its own."""
    Nq, Nk = len(Q), len(K)
    O, LSE = np.zeros_like(Q), np.full(Nq, -np.inf)
    for i in range(0, Nq, Br):
        q, end = Q[i:i + Br], min(i + Br, Nq) + Nk - Nq
        tiles = range(0, max(0, end) if causal else Nk, Bc)
        if not tiles: continue  # no key is seen
        o, l, m = np.zeros_like(q), np.zeros(len(q)), np.full(len(q), -np.inf)
        S = scores(q, K[:Bc], scale, causal, i + Nk - Nq)
        P, l, m, _ = softmax(S, l, m)
        for j in tiles[1:]:
            S = scores(q, K[j:j + Bc], scale, causal, i + Nk - Nq - j)  # is started
            PV = P @ V[j - Bc:j]  # of the tile before: is started, too, and nobody waits for it yet
            P, l, m, factor = softmax(S, l, m)  # needs S alone: P V may still run
            o = factor[:, None] * (o + PV)  # now it is waited for
        o += P @ V[tiles[-1]:tiles[-1] + Bc]
        O[i:i + Br], LSE[i:i + Br] = o / np.where(l > 0, l, 1)[:, None], m + log(l)
    return O, LSE
#< attention


def scores(q, k, scale, causal, seen):
    """scale q k^T; with a mask, row r sees the keys up to seen + r."""
    S = scale * q @ k.T
    if causal: S[~np.tri(*S.shape, seen, dtype=bool)] = -np.inf
    return S


def softmax(S, l, m):
    """Chapter 2's update: the weights, l and m, and by what earlier sums are to be multiplied."""
    m_new = np.maximum(m, S.max(axis=1))
    safe = np.where(np.isneginf(m_new), 0, m_new)  # a row that has seen no key
    P, factor = np.exp(S - safe[:, None]), np.exp(m - safe)
    return P, factor * l + P.sum(axis=1), m_new, factor


def log(l):
    with np.errstate(divide="ignore"):
        return np.log(l)


def main():
    spec = importlib.util.spec_from_file_location("step00", Path(__file__).parents[1] / "step00_naive/attention.py")
    step00 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step00)
    random, N, d = np.random.default_rng(0), 500, 64
    Q, K, V = random.standard_normal((3, N, d))
    for causal in False, True:
        for mine, right in zip(attention(Q, K, V, d**-0.5, causal), step00.attention(Q, K, V, d**-0.5, causal)):
            np.testing.assert_allclose(mine, right, rtol=0, atol=1e-12)
    print("O and LSE are step00's to within 1e-12, with a causal mask and without")


if __name__ == "__main__":
    main()
