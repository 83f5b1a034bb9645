#!/usr/bin/python3
"""Attention and its gradients as they are defined, in NumPy. The cross-check of every step uses this.

    /usr/bin/python3 step00_naive/attention.py      a small example, and one gradient tested
"""
import numpy as np


#> forward
def attention(Q, K, V, scale, causal=False):
    """Q [.., Nq, d], K and V [.., Nk, d]; returns O [.., Nq, d], LSE [.., Nq] and P [.., Nq, Nk]."""
    S = scale * Q @ K.swapaxes(-1, -2)
    if causal:  # query i sees the keys j <= i + Nk - Nq
        Nq, Nk = S.shape[-2:]
        S[..., ~np.tri(Nq, Nk, Nk - Nq, dtype=bool)] = -np.inf
    m = S.max(axis=-1, keepdims=True)
    m[np.isneginf(m)] = 0  # a query that sees no key: P = 0, O = 0, LSE = -inf
    P = np.exp(S - m)
    l = P.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        LSE = (m + np.log(l))[..., 0]
    P /= np.where(l > 0, l, 1)
    return P @ V, LSE, P
#< forward


#> backward
def attention_backward(Q, K, V, dO, P, scale):
    """The gradients of the loss, given its gradient dO with respect to O; returns dQ, dK, dV."""
    dV = P.swapaxes(-1, -2) @ dO
    dP = dO @ V.swapaxes(-1, -2)
    dS = P * (dP - (P * dP).sum(axis=-1, keepdims=True))
    return scale * dS @ K, scale * dS.swapaxes(-1, -2) @ Q, dV
#< backward


def main():
    random = np.random.default_rng(0)
    Q, K, V, dO = random.standard_normal((4, 6, 8))
    scale, h = 8**-0.5, 1e-6
    O, LSE, P = attention(Q, K, V, scale, causal=True)
    print("P, each row sums to 1:\n", P.round(2))
    dQ = attention_backward(Q, K, V, dO, P, scale)[0]
    Q[3, 2] += h
    change = ((attention(Q, K, V, scale, causal=True)[0] - O) * dO).sum() / h
    print(f"dQ[3, 2] = {dQ[3, 2]:.6f}; the loss changes by {change:.6f} per unit of Q[3, 2]")


if __name__ == "__main__":
    main()
