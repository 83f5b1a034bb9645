#!/usr/bin/python3
"""The online softmax in NumPy: what is known of some keys, and how two such parts become one.

    /usr/bin/python3 step02_online_softmax/attention.py      a row, score by score; any order; no maximum; factors
"""
import itertools
from functools import reduce

import numpy as np


#> online
def part(S, V):
    """Of some keys, by their scores and values: maximum, sum of weights, weighted sum of V."""
    m = S.max(axis=1, keepdims=True)
    weights = np.exp(S - safe(m))
    return m, weights.sum(axis=1, keepdims=True), weights @ V


def merge(a, b):
    """Of the keys of both: each is scaled from its own maximum to the larger one."""
    m = np.maximum(a[0], b[0])
    fa, fb = np.exp(a[0] - safe(m)), np.exp(b[0] - safe(m))
    return m, fa * a[1] + fb * b[1], fa * a[2] + fb * b[2]


def attention(Q, K, V, scale, causal=False, Tile=32):
    """One head: Q [Nq, d], K and V [Nk, d]; returns O and LSE. S exists one tile at a time."""
    tiles = (slice(j, j + Tile) for j in range(0, len(K), Tile))
    m, l, O = reduce(merge, (part(scores(Q, K, scale, causal, tile), V[tile]) for tile in tiles))
    with np.errstate(divide="ignore"):
        return O / np.where(l > 0, l, 1), (m + np.log(l))[:, 0]
#< online


def safe(m):
    """Where no key has been seen, m is -inf, and -inf - (-inf) is not a number: measure from 0."""
    return np.where(np.isneginf(m), 0, m)


def scores(Q, K, scale, causal, tile):
    """A tile of S: all queries, some keys."""
    S = scale * Q @ K[tile].T
    if causal:
        S[~np.tri(len(Q), len(K), len(K) - len(Q), dtype=bool)[:, tile]] = -np.inf
    return S


def one_row():
    """(m, l) after each score of a short row."""
    m, l = -np.inf, 0.0
    for score in 1.0, 3.0, 2.0, 5.0:
        m_new = max(m, score)
        factor = np.exp(m - m_new)
        m, l = m_new, l * factor + np.exp(score - m_new)
        print(f"  score {score:.0f}: factor {factor:.4f}, m {m:.0f}, l {l:.4f}, LSE {m + np.log(l):.4f}")


def any_order():
    """Four parts of a row, merged in every order, and in pairs."""
    random = np.random.default_rng(0)
    S, V = 4 * random.standard_normal((1, 128)), random.standard_normal((128, 8))
    parts = [part(S[:, j:j + 32], V[j:j + 32]) for j in range(0, 128, 32)]
    ways = [reduce(merge, order) for order in itertools.permutations(parts)]
    ways.append(merge(merge(parts[0], parts[1]), merge(parts[2], parts[3])))
    for way in ways:
        assert all(np.allclose(x, y, rtol=1e-13) for x, y in zip(way, ways[0]))
    print(f"  {len(ways)} ways to merge four parts: the same m, and l and O to 13 digits")


def without_maximum():
    """Softmax in fp32 without subtracting m, on scores of a growing size."""
    scores = np.random.default_rng(0).standard_normal((1000, 128))
    for deviation in 1, 10, 30, 100:
        S = (deviation * scores).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            plain = np.exp(S) / np.exp(S).sum(axis=1, keepdims=True)
        m = S.max(axis=1, keepdims=True)
        shifted = np.exp(S - m) / np.exp(S - m).sum(axis=1, keepdims=True)
        spoilt = [(~np.isfinite(P).all(axis=1)).sum() for P in (plain, shifted)]
        print(f"  standard deviation {deviation:3}: {spoilt[0]:4} of 1000 rows are not finite, "
              f"{spoilt[1]} with the maximum")


def factors_of_one():
    """How often, in a turn of 32 keys, none of so many rows meets a new maximum."""
    random = np.random.default_rng(0)
    for N in 512, 4096, 16384:
        rows, turns = 2**23 // N, N // 32
        S = random.standard_normal((rows, 64)) @ random.standard_normal((64, N))
        m = S.reshape(rows, turns, 32).max(axis=2)
        one = np.zeros((rows, turns), dtype=bool)    # the first turn's factor is 0
        one[:, 1:] = m[:, 1:] <= np.maximum.accumulate(m, axis=1)[:, :-1]
        shares = (one.reshape(-1, n, turns).all(axis=1).mean() for n in (1, 4, 16, 64))
        print(f"  N = {N:5}:", *(f"{share:6.1%}" for share in shares))


def main():
    print("a row, score by score:")
    one_row()
    print("any order:")
    any_order()
    print("fp32 without the maximum, 128 scores a row:")
    without_maximum()
    print("turns of 32 keys in which all factors of 1, 4, 16, 64 rows are 1:")
    factors_of_one()


if __name__ == "__main__":
    main()
