"""The kernels beside what others wrote, on one card, in one process: FlashAttention-2 and cuDNN through PyTorch, and
the card's own matrix product. Needs PyTorch with CUDA, which nothing else here does.

    make peers ARGS="--kernels fa2 --peers fa2,cudnn,matmul --dims 64,128 --lengths 1024,4096,16384"

Each measurement of a kernel has its peers' right before it; a round is all kernels of a cell once. Launches are queued:
the time that the host needs for a launch, most of all PyTorch's, must not count. Before each measurement is a pause,
since the card is limited by its power: a card that was just busy is slower. Speeds are FLOP/s of the pairs that the
mask lets through: 4 d a pair forward, 10 d backward.
"""
import argparse
import ctypes
import datetime
import os
import re
import statistics
import subprocess
import sys
import time

PASSES = {"forward": 1, "backward": 2, "attention": 4}  # the last: the forward without FP8's pre-pass
DTYPES = {"fp16": 1, "bf16": 2, "fp8": 3}  # enum attn_dtype; FP8 kernels, and all peers, are given bf16
PEERS = ("fa2", "cudnn", "matmul")
SQUARE = 8192  # of the matrix product
MOST_ERROR = {"fp16": 1e-2, "bf16": 3e-2, "fp8": 1e-1}  # relative: several times what rounding P and the results costs


def refuse(why, status=2):
    """One line, and out: 2, the value is wrong; 3, this machine cannot."""
    print(f"peers.py: {why}", file=sys.stderr)
    sys.exit(status)


class Shape(ctypes.Structure):  # struct peers_shape of peers.c
    _fields_ = [(name, ctypes.c_int) for name in
                "batch heads kv_heads seqlen_q seqlen_k head_dim causal dtype".split()] + [("scale", ctypes.c_float)]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        refuse(f"{message}; --help lists the options")


def names(text):
    return text.split(",")


def numbers(text):
    return [int(n) for n in text.split(",")]


def arguments():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=names, default=["build/gpu/kernels.so"])
    parser.add_argument("--kernels", type=names, default=["fa2"])
    parser.add_argument("--peers", type=names, default=["fa2"], help="fa2, cudnn, matmul")
    parser.add_argument("--pass", dest="passes", type=names, default=["forward"], help="forward, backward, attention")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--dims", type=numbers, default=[64, 128])
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096, 16384])
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--tokens", type=int, default=16384, help="batch x length")
    parser.add_argument("--hidden", type=int, default=2048, help="heads x d")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reps", type=int, default=20, help="launches of one measurement")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds before one")
    parser.add_argument("--csv", help="where the measurements go")
    options = parser.parse_args()
    for what, allowed in (("peers", PEERS), ("passes", PASSES)):
        for name in getattr(options, what):
            if name not in allowed:
                refuse(f"{name}: there are {', '.join(allowed)}")
    for what in ("dims", "lengths", "tokens", "hidden", "rounds", "reps"):
        value = getattr(options, what)
        if min(value if isinstance(value, list) else [value]) < 1:
            refuse(f"--{what} {value}: must be at least 1")
    if max(options.dims) > options.hidden:
        refuse(f"--dims {max(options.dims)}: more than --hidden {options.hidden}")
    if not set(options.causal) <= {0, 1}:
        refuse(f"--causal {options.causal}: 0, 1 or 0,1")
    return options


def open_libraries(options):
    """The libraries of kernels; all of them have all the kernels asked for."""
    libraries = []
    for path in options.library:
        try:
            library = ctypes.CDLL(os.path.abspath(path))
        except OSError:
            refuse(f"{path}: no library of kernels; make gpu builds build/gpu/kernels.so")
        library.peers_has.restype = ctypes.c_bool
        for name in options.kernels:
            if not library.peers_has(name.encode()):
                refuse(f"{path} has no kernel {name}; make list shows them")
        libraries.append(library)
    return libraries


def seconds(run, options):
    """The median of queued launches."""
    torch.cuda.synchronize()
    time.sleep(options.pause)
    for _ in range(4):
        run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(options.reps + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:])) * 1e-3


def ask_card(what):
    """What nvidia-smi knows of the card in use."""
    card = getattr(torch.cuda.get_device_properties(0), "uuid", None)  # a recent PyTorch knows which
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command + ([f"--id=GPU-{card}"] if card else []), capture_output=True, text=True)
    return answer.stdout.split()[0] if answer.returncode == 0 and answer.stdout.split() else ""


def clock():
    """SM clock now, in MHz. Read right after a measurement."""
    return ask_card("clocks.sm")


class Cell:
    """One shape with its tensors, and what a right answer is for its first and last head."""

    def __init__(self, options, d, N, causal, what):
        self.options, self.d, self.N, self.causal, self.what = options, d, N, causal, what
        self.B, self.H = max(1, options.tokens // N), options.hidden // d
        self.scale = d ** -0.5
        dtype = torch.float16 if options.dtype == "fp16" else torch.bfloat16
        make = lambda: torch.randn(self.B, self.H, N, d, device="cuda", dtype=dtype)
        self.Q, self.K, self.V, self.dO = make(), make(), make(), make()
        pairs = N * (N + 1) / 2 if causal else N * N
        self.flops = (10 if what == "backward" else 4) * d * pairs * self.B * self.H
        self.answers = {bh: self.answer(*divmod(bh, self.H)) for bh in {0, self.B * self.H - 1}}

    def answer(self, b, h):
        """O, LSE, and for the backward dQ, dK, dV of one head, in double."""
        Q, K, V, dO = (t[b, h].double() for t in (self.Q, self.K, self.V, self.dO))
        S = Q @ K.T * self.scale
        if self.causal:
            S.masked_fill_(torch.ones_like(S, dtype=torch.bool).triu_(1), -torch.inf)
        LSE = torch.logsumexp(S, -1)
        P = torch.exp(S - LSE[:, None])
        O = P @ V
        if self.what == "forward":
            return O, LSE
        dS = P * (dO @ V.T - (dO * O).sum(-1)[:, None])
        return O, LSE, dS @ K * self.scale, dS.T @ Q * self.scale, P.T @ dO

    def error(self, outputs):
        """The largest relative error (in the 2-norm) of these outputs, a head's at a time."""
        worst = 0.0
        for bh, answer in self.answers.items():
            for got, want in zip(outputs, answer[2:] if self.what == "backward" else answer):
                got = got.reshape(self.B * self.H, *want.shape)[bh].double()
                if not torch.isfinite(got).all():
                    return float("inf")
                worst = max(worst, float((got - want).norm() / want.norm()))
        return worst


def peer(name, cell):
    """A function that launches the peer's pass once, and its FLOPs."""
    aten, causal = torch.ops.aten, bool(cell.causal)
    if name == "matmul":
        A, B = (torch.randn(SQUARE, SQUARE, device="cuda", dtype=cell.Q.dtype) for _ in range(2))
        out = torch.empty_like(A)
        return lambda: torch.mm(A, B, out=out), 2 * SQUARE ** 3
    backend = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[name]
    forward = torch.nn.functional.scaled_dot_product_attention
    inputs = [t.clone().requires_grad_(cell.what == "backward") for t in (cell.Q, cell.K, cell.V)]

    def attention():
        with sdpa_kernel(backend):
            return forward(*inputs, is_causal=causal)

    if cell.what != "backward":
        if name == "fa2":  # the operator itself: less of the host's time
            return lambda: aten._scaled_dot_product_flash_attention(*inputs, 0.0, causal, False), cell.flops
        return attention, cell.flops
    if name == "fa2":
        r = aten._scaled_dot_product_flash_attention(cell.Q, cell.K, cell.V, 0.0, causal, False)
        return lambda: aten._scaled_dot_product_flash_attention_backward(
            cell.dO, cell.Q, cell.K, cell.V, r[0], r[1], r[2], r[3], r[4], r[5], 0.0, causal, r[6], r[7]), cell.flops
    O = attention()
    return lambda: torch.autograd.grad(O, inputs, cell.dO, retain_graph=True), cell.flops


class Rung:
    """One of our kernels, opened for a cell."""

    def __init__(self, library, name, cell):
        self.cell, self.library = cell, library
        self.library.peers_open.restype = ctypes.c_void_p
        dtype = DTYPES[cell.options.dtype]
        shape = Shape(cell.B, cell.H, cell.H, cell.N, cell.N, cell.d, cell.causal, dtype, cell.scale)
        why = ctypes.create_string_buffer(300)
        self.passes = PASSES["forward"] | (PASSES["backward"] if cell.what == "backward" else 0)
        self.handle = self.library.peers_open(name.encode(), ctypes.byref(shape), self.passes, why, 300)
        if not self.handle:
            refuse(f"{name}: {why.value.decode()}")
        nan = lambda t: torch.full_like(t, torch.nan)
        self.O, self.LSE = nan(cell.Q), torch.full(cell.Q.shape[:3], torch.nan, device="cuda")
        self.gradients = [nan(t) for t in (cell.Q, cell.K, cell.V)] if cell.what == "backward" else []
        tensors = [cell.Q, cell.K, cell.V, self.O, self.LSE, cell.dO, *self.gradients]
        self.pointers = (ctypes.c_void_p * 9)(*[t.data_ptr() for t in tensors])
        if cell.what != "forward":
            self.launch("forward")

    def launch(self, what):
        self.library.peers_run(ctypes.c_void_p(self.handle), PASSES[what], self.pointers)

    def __call__(self):
        self.launch(self.cell.what)

    def outputs(self):
        self()
        torch.cuda.synchronize()
        return self.gradients if self.cell.what == "backward" else [self.O, self.LSE]

    def close(self):
        self.library.peers_close(ctypes.c_void_p(self.handle))


def measure(cell, options, libraries, write):
    """All rounds of one cell: the peers, then a kernel, the peers again, then the next."""
    rungs = [(f"{name}@{n}" if n else name, Rung(library, name, cell))
             for n, library in enumerate(libraries) for name in options.kernels]
    peers = [(name, *peer(name, cell)) for name in options.peers]
    errors = [cell.error(rung.outputs()) for _, rung in rungs]
    for (name, _), error in zip(rungs, errors):
        if error > MOST_ERROR[options.dtype]:
            refuse(f"{name} is wrong: d={cell.d} N={cell.N} causal={cell.causal}, error {error:.1e}", 1)
    ratios = {}
    for turn in range(options.rounds):
        for (name, rung), error in zip(rungs, errors):
            before = [(other, flops / seconds(run, options) / 1e12) for other, run, flops in peers]
            own = cell.flops / seconds(rung, options) / 1e12
            mhz = clock()
            for other, speed in before:
                ratios.setdefault((name, other), []).append((own, speed, own / speed))
                write(name, other, cell, turn, own, speed, mhz, error)
    for rung in rungs:
        rung[1].close()
    for (name, other), values in ratios.items():
        own, speed, ratio = (statistics.median(column) for column in zip(*values))
        error = errors[[n for n, _ in rungs].index(name)]
        print(f"{cell.what} d={cell.d} N={cell.N} causal={cell.causal} {name:20s} {own:6.1f} TFLOP/s, {other} "
              f"{speed:6.1f}: {ratio:.3f}   error {error:.1e}", flush=True)


def main():
    global torch, SDPBackend, sdpa_kernel
    options = arguments()
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        refuse("needs PyTorch, and a GPU that it can use", 3)
    if not torch.cuda.is_available():
        refuse("PyTorch finds no GPU", 3)
    libraries = open_libraries(options)
    torch.manual_seed(1)
    try:
        out = open(options.csv, "w") if options.csv else None
    except OSError as error:
        refuse(f"--csv {options.csv}: {error.strerror}")
    stamp = [str(datetime.date.today()), f'"{torch.cuda.get_device_name()}"', ask_card("driver_version"),
             torch.__version__]
    words = re.sub(r" --csv[ =]\S+", "", " ".join(sys.argv[1:]))  # where it goes is not of interest
    command = f'"tests/peers.py {words}"'

    def write(name, other, cell, turn, own, speed, mhz, error):
        if out:
            row = [*stamp, cell.what, options.dtype, cell.d, cell.N, cell.causal, cell.B, cell.H, name, other, turn,
                   f"{own:.2f}", f"{speed:.2f}", f"{own / speed:.4f}", mhz, f"{error:.2e}", command]
            print(",".join(str(x) for x in row), file=out, flush=True)

    if out:
        print("date,device,driver,torch,pass,dtype,head_dim,seqlen,causal,batch,heads,kernel,peer,round,TFLOPs,"
              "peer_TFLOPs,ratio,clock_MHz,error,command", file=out)
    for what in options.passes:
        for d in options.dims:
            for causal in options.causal:
                for N in options.lengths:
                    measure(Cell(options, d, N, causal, what), options, libraries, write)


if __name__ == "__main__":
    main()
