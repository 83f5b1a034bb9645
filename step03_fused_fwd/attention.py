#!/usr/bin/python3
"""FlashAttention's forward for one head, in NumPy, in both orders of its loops.

    /usr/bin/python3 step03_fused_fwd/attention.py      both orders against step00's definition
"""
import importlib.util
from pathlib import Path

import numpy as np


#> fused
def fused(Q, K, V, scale, causal, Br, Bc):
    """Q [Nq, d], K and V [Nk, d]; returns O [Nq, d] and LSE [Nq]. Holds no [Nq, Nk], only [Br, Bc]."""
    Nq, Nk = len(Q), len(K)
    O, LSE = np.empty_like(Q), np.empty(Nq)
    for i in range(0, Nq, Br):  # a tile of queries: its O, m and l are made at one go
        q = Q[i:i + Br]
        o, m, l = np.zeros_like(q), np.full(len(q), -np.inf), np.zeros(len(q))
        keys = max(0, i + len(q) + Nk - Nq) if causal else Nk  # that its last query sees
        for j in range(0, keys, Bc):
            S = logits(q, K[j:j + Bc], scale, causal, i + Nk - Nq - j)
            o, m, l = update(o, m, l, S, V[j:j + Bc])
        O[i:i + Br] = o / np.where(l > 0, l, 1)[:, None]
        LSE[i:i + Br] = m + log(l)
    return O, LSE


def update(o, m, l, S, v):
    """Takes the scores S of more keys, and their values v, into the rows' o, m and l."""
    m_new = np.maximum(m, S.max(axis=1))
    m_safe = np.where(np.isneginf(m_new), 0, m_new)  # no key seen yet: all weights are 0
    P, factor = np.exp(S - m_safe[:, None]), np.exp(m - m_safe)
    return factor[:, None] * o + P @ v, m_new, factor * l + P.sum(axis=1)
#< fused


#> algorithm1
def algorithm1(Q, K, V, scale, causal, Br, Bc):
    """The same with the loops exchanged: O, m and l are memory that each tile of keys adds to."""
    Nq, Nk = len(Q), len(K)
    O, m, l = np.zeros_like(Q), np.full(Nq, -np.inf), np.zeros(Nq)
    for j in range(0, Nk, Bc):
        first = max(0, j + Nq - Nk) // Br * Br if causal else 0  # of the tiles that see key j
        for i in range(first, Nq, Br):
            t = slice(i, i + Br)
            S = logits(Q[t], K[j:j + Bc], scale, causal, i + Nk - Nq - j)
            o, m[t], l[t] = update(l[t, None] * O[t], m[t], l[t], S, V[j:j + Bc])
            O[t] = o / np.where(l[t] > 0, l[t], 1)[:, None]  # as if no key came after these
    return O, m + log(l)
#< algorithm1


def logits(q, k, scale, causal, diagonal):
    """A tile of S. Query r of the tile sees its keys 0 .. r + diagonal."""
    S = scale * q @ k.T
    if causal:
        S[~np.tri(*S.shape, diagonal, dtype=bool)] = -np.inf
    return S


def log(l):
    with np.errstate(divide="ignore"):
        return np.log(l)


def main():
    spec = importlib.util.spec_from_file_location("step00", Path(__file__).parents[1] / "step00_naive/attention.py")
    step00 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step00)
    random, worst = np.random.default_rng(0), 0
    for Nq, Nk in (64, 64), (37, 100), (100, 37), (1, 77), (77, 1):
        for causal in False, True:
            Q, (K, V) = random.standard_normal((Nq, 8)), 9 * random.standard_normal((2, Nk, 8))
            O, LSE, _ = step00.attention(Q, K, V, 8**-0.5, causal)
            for order in fused, algorithm1:
                for tiles in (8, 8), (16, 40), (40, 16), (128, 128):
                    mine = order(Q, K, V, 8**-0.5, causal, *tiles)
                    np.testing.assert_allclose(mine[0], O, rtol=0, atol=1e-12)
                    np.testing.assert_allclose(mine[1], LSE, rtol=0, atol=1e-12)
                    worst = max(worst, abs(mine[0] - O).max())
    print(f"fused and algorithm1 give step00's O and LSE; largest difference of O: {worst:.1e}")


if __name__ == "__main__":
    main()
