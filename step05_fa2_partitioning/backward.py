#!/usr/bin/python3
"""FlashAttention-2's backward for one head in NumPy: a block for each tile of keys, and dQ from the parts of all.

    /usr/bin/python3 step05_fa2_partitioning/backward.py      which bits depend on the order of the blocks
"""
import importlib.util
from pathlib import Path

import numpy as np

LOG2E = np.log2(np.e)


#> backward
def block_of_keys(j, Q, K, V, LSE, D, dO, scale, causal, Br, Bc):
    """What keys j ... j + Bc - 1 add to dQ, and their dK and dV. The rows of S^T, P^T and dS^T are keys."""
    Nq, Nk, k, v = len(Q), len(K), K[j:j + Bc], V[j:j + Bc]
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(k), np.zeros_like(v)
    first = max(0, j + Nq - Nk) // Br * Br if causal else 0  # of the tiles that see key j
    for i in range(first, Nq, Br):
        t = slice(i, i + Br)
        St = k @ Q[t].T
        if causal:  # query r of the tile sees its keys 0 ... r + i + Nk - Nq - j
            St[~np.tri(*St.T.shape, i + Nk - Nq - j, dtype=bool).T] = -np.inf
        Pt = np.exp2(scale * LOG2E * St - LOG2E * LSE[t])
        dSt = Pt * (v @ dO[t].T - D[t])
        dV += Pt @ dO[t]
        dK += dSt @ Q[t]
        dQ[t] = dSt.T @ k
    return scale * dQ, scale * dK, dV


def backward(Q, K, V, O, LSE, dO, scale, causal, Br=32, Bc=128):
    D = (dO * O).sum(axis=1)
    LSE = np.where(np.isneginf(LSE), np.inf, LSE)  # a row that sees nothing: P is 0
    blocks = [block_of_keys(j, Q, K, V, LSE, D, dO, scale, causal, Br, Bc) for j in range(0, len(K), Bc)]
    parts_of_dQ, dK, dV = zip(*blocks)
    return sum(parts_of_dQ), np.concatenate(dK), np.concatenate(dV)
#< backward


def bf16(x):
    """fp32 rounded to 16 bits, as they lie in memory."""
    bits = x.view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def check_against(step00, random):
    tried, scale = 0, 8**-0.5
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


def main():
    spec = importlib.util.spec_from_file_location("step00", Path(__file__).parents[1] / "step00_naive/attention.py")
    step00 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step00)
    random, N, d = np.random.default_rng(0), 1024, 64
    check_against(step00, random)

    Q, K, V, dO = random.standard_normal((4, N, d))
    O, LSE, _ = step00.attention(Q, K, V, d**-0.5)
    D = (dO * O).sum(axis=1)
    parts = [block_of_keys(j, Q, K, V, LSE, D, dO, d**-0.5, False, 32, 128)[0].astype(np.float32)
             for j in range(0, N, 128)]
    orders = {"first to last": range(8), "once more": range(8), "last to first": range(7, -1, -1),
              "shuffled": random.permutation(8)}
    usual = None
    print("the order of the blocks   numbers of dQ that differ: in fp32    in bf16")
    for name, order in orders.items():
        dQ = np.zeros((N, d), np.float32)
        for block in order:
            dQ += parts[block]  # an atomic addition is rounded like any other
        usual = dQ if usual is None else usual
        print(f"{name:23s} {np.sum(dQ != usual):32d} {np.sum(bf16(dQ) != bf16(usual)):10d} of {dQ.size}")


if __name__ == "__main__":
    main()
