#!/usr/bin/python3
"""FlashAttention's backward for one head, in NumPy: tile by tile, with P made again from the LSE.

    /usr/bin/python3 step04_backward_recompute/attention.py      against step00's, which is given P
"""
import importlib.util
from pathlib import Path

import numpy as np


#> backward
def backward(Q, K, V, O, LSE, dO, scale, causal, Br, Bc):
    """Q, O, dO [Nq, d], K and V [Nk, d], LSE [Nq]. Holds no [Nq, Nk], only [Br, Bc]."""
    Nq, Nk = len(Q), len(K)
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    D = (dO * O).sum(axis=1)
    for j in range(0, Nk, Bc):
        k, v = K[j:j + Bc], V[j:j + Bc]
        first = max(0, j + Nq - Nk) // Br * Br if causal else 0  # of the tiles that see key j
        for i in range(first, Nq, Br):
            t = slice(i, i + Br)
            S = scale * Q[t] @ k.T
            P = np.exp(S - LSE[t, None])
            if causal:  # query r of the tile sees its keys 0 .. r + i + Nk - Nq - j
                P[~np.tri(*P.shape, i + Nk - Nq - j, dtype=bool)] = 0
            dP = dO[t] @ v.T
            dS = scale * P * (dP - D[t, None])
            dV[j:j + Bc] += P.T @ dO[t]
            dK[j:j + Bc] += dS.T @ Q[t]
            dQ[t] += dS @ k
    return dQ, dK, dV
#< backward


def main():
    spec = importlib.util.spec_from_file_location("step00", Path(__file__).parents[1] / "step00_naive/attention.py")
    step00 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step00)
    random, scale = np.random.default_rng(0), 8**-0.5

    Q, K, V, dO = random.standard_normal((4, 6, 8))
    O, _, P = step00.attention(Q, K, V, scale)
    print("row  D from P and dP   D from O and dO")
    for i, (wide, narrow) in enumerate(zip((P * (dO @ V.T)).sum(axis=1), (dO * O).sum(axis=1))):
        print(f"{i:3}  {wide:15.12f}   {narrow:15.12f}")

    tried = 0
    for Nq, Nk in (64, 64), (37, 100), (100, 37), (1, 77), (77, 1):
        for causal in False, True:
            (Q, dO), (K, V) = random.standard_normal((2, Nq, 8)), random.standard_normal((2, Nk, 8))
            O, LSE, P = step00.attention(Q, K, V, scale, causal)
            right = step00.attention_backward(Q, K, V, dO, P, scale)
            for tiles in (8, 8), (16, 40), (40, 16), (128, 128):
                for mine, theirs in zip(backward(Q, K, V, O, LSE, dO, scale, causal, *tiles), right):
                    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)
                    tried += 1
    print(f"dQ, dK and dV are step00's to within 1e-12, in {tried} comparisons")


if __name__ == "__main__":
    main()
