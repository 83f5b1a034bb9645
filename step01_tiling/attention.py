#!/usr/bin/python3
"""Attention whose two products are made tile by tile, in NumPy.

    /usr/bin/python3 step01_tiling/attention.py      how often S = Q K^T fetches each number of Q
"""
import numpy as np


#> tiles
def product(A, B, Tile):
    """A B, tile by tile, and how many numbers of A and B were fetched for it."""
    C, fetched = np.zeros((A.shape[0], B.shape[1])), 0
    for i in range(0, C.shape[0], Tile):          # for each tile of C:
        for j in range(0, C.shape[1], Tile):
            for c in range(0, A.shape[1], Tile):  # a row of tiles of A times a column of tiles of B
                a, b = A[i:i + Tile, c:c + Tile], B[c:c + Tile, j:j + Tile]
                fetched += a.size + b.size
                C[i:i + Tile, j:j + Tile] += a @ b
    return C, fetched


def attention(Q, K, V, scale, causal=False, Tile=32):
    """One head: Q [Nq, d], K and V [Nk, d]; returns O, LSE and P as step00 does."""
    S = scale * product(Q, K.T, Tile)[0]
    if causal:
        S[~np.tri(*S.shape, S.shape[1] - S.shape[0], dtype=bool)] = -np.inf
    P, LSE = softmax(S)
    return product(P, V, Tile)[0], LSE, P
#< tiles


def softmax(S):
    """As in step00, row by row."""
    m = S.max(axis=1, keepdims=True)
    m[np.isneginf(m)] = 0
    P = np.exp(S - m)
    l = P.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        return P / np.where(l > 0, l, 1), (m + np.log(l))[:, 0]


def main():
    N, d = 256, 64
    Q, K = np.random.default_rng(0).standard_normal((2, N, d))
    print(f"S = Q K^T at N = {N}, d = {d}: {N * N * d} multiply-adds on {2 * N * d} numbers")
    for Tile in 1, 8, 16, 32, 64:
        S, fetched = product(Q, K.T, Tile)
        assert np.allclose(S, Q @ K.T)
        print(f"  tiles of {Tile:2}: {fetched:7} numbers fetched, each {fetched // (2 * N * d):3} times")


if __name__ == "__main__":
    main()
