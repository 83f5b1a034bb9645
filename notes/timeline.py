#!/usr/bin/python3
"""Draws what the simulator's --timeline FILE says of one block: who computes, copies and waits, and for what.

    notes/timeline.py LOG FIGURE     draws block 0 of a log of step06, in 16 bits and with d = 64
    notes/timeline.py                runs step06's rungs in the simulator, draws notes/figures/timeline_*.svg
    notes/timeline.py --check        runs them again: are the figures still what they do?
    notes/timeline.py --count        runs them, too, and counts the softmaxes that have company

The columns of a figure are the log's steps (common/sim/timeline.c says what they are): an order, not a time.
"""
import csv
import re
import subprocess
import sys
import tempfile

STEP06 = "build/sim/step06"
ONE_BLOCK = "-d 64 -H 1 --seqlen-q 128 --seqlen-k 512"
TWO_TILES = "-d 64 -H 133 --seqlen-q 64 --seqlen-k 256"    # 132 blocks: one of them, block 0, has two tiles
RUNGS = {"tma-wgmma": ONE_BLOCK, "producer": ONE_BLOCK, "ping-pong": ONE_BLOCK, "overlap": ONE_BLOCK,
         "fa3": TWO_TILES}
# Where what lies in a block's shared memory at d = 64: the first byte after each buffer, in KB.
RINGS = {16: "Q", 32: "K 0", 48: "K 1", 64: "V 0", 80: "V 1"}
BUFFERS = {"tma_wgmma": {16: "Q", 32: "K", 48: "V"}, "producer": RINGS, "ping_pong": RINGS, "overlap": RINGS,
           "fa3": {24: "Q, O 0", 48: "Q, O 1", 64: "K 0", 80: "K 1", 96: "V 0", 112: "V 1"}}
# What warps 0, 1, … of a warpgroup that does not multiply do.
ROLES = {"producer": ["producer"], "ping_pong": ["producer"], "overlap": ["producer"],
         "fa3": ["producer Q, K", "producer V", "storer"]}
WAITS = {"__syncthreads()": "meeting", "setmaxnreg_inc()": "meeting", "mbarrier_wait()": "mbarrier", "named_barrier_sync()": "turn",
         "wgmma_wait()": "products", "tma_store_wait_read()": "mbarrier"}


# ---- the log -------------------------------------------------------------------------------------


def log_of(kernel):
    """The rows of block 0, of one run."""
    with tempfile.NamedTemporaryFile(mode="r") as file:
        command = f"{STEP06} {RUNGS[kernel]} --kernel {kernel} --fast --timeline {file.name}"
        done = subprocess.run(command.split(), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return block_0(file)


def block_0(file):
    rows = [row for row in csv.DictReader(file) if row["block"] == "0"]
    shapes = {row["what"] for row in rows if row["event"] == "product"}
    if shapes != {"m64n128k16", "m64n64k16"} or kernel_of(rows[-1:]) not in BUFFERS:
        sys.exit("timeline.py draws step06's rungs in 16 bits, one kernel in a log, with d = 64")
    return [{**row, "from": int(row["from"]), "to": int(row["to"])} for row in rows]


def kernel_of(rows):
    return re.match(r"\w+", rows[0]["kernel"])[0]


def warpgroups(rows):
    """[(number, its first warp)] of those that multiply."""
    numbers = sorted({int(row["who"].split()[-1]) for row in rows if row["event"] == "product"})
    return [(n, f"warp {4 * n}") for n in numbers]


def products(rows, number):
    """[(from, to, name)] of a warpgroup, in order. At d = 64 S has 128 columns, and O has 64."""
    spans = {(row["from"], row["to"], "QK" if "n128" in row["what"] else "PV") for row in rows
             if row["event"] == "product" and row["who"] == f"tensor cores {number}"}
    return sorted(spans)


def waits(rows, warp):
    """{step at which it comes: (step at which it goes on, what it waits for)}"""
    return {row["from"]: (row["to"], WAITS.get(row["what"], row["what"])) for row in rows
            if row["event"] == "wait" and row["who"] == warp}


def softmaxes(rows, number):
    """The steps in which a warpgroup makes its weights: when it goes on after Q K^T (and after a meeting, if one
    follows at once)."""
    mine, out = waits(rows, f"warp {4 * number}"), []
    for step in sorted(to for _, to, name in products(rows, number) if name == "QK"):
        while step in mine and mine[step][1] == "meeting":
            step = mine[step][0]
        out.append(step)
    return out


def copies(rows):
    """{buffer: [(from, to, is it a load?)]}"""
    out = {name: [] for name in BUFFERS[kernel_of(rows)].values()}
    for row in rows:
        found = re.match(r"(load to|store from) smem \+ (\d+)", row["what"])
        if row["event"] == "copy" and found:
            end = next(end for end in BUFFERS[kernel_of(rows)] if int(found[2]) < end * 1024)
            out[BUFFERS[kernel_of(rows)][end]].append((row["from"], row["to"], found[1] == "load to"))
    return out


# ---- the figure ----------------------------------------------------------------------------------

LEFT, ROW, HEAD = 106, 18, 66
STYLES = {    # of waits: how the line is drawn
    "products": 'stroke="#222" stroke-width="1.6"', "turn": 'stroke="#222" stroke-width="1.6" stroke-dasharray="5 3"',
    "mbarrier": 'stroke="#222" stroke-width="1.6" stroke-dasharray="1.5 2.5"',
    "meeting": 'stroke="#222" stroke-width="3.5" stroke-dasharray="1.5 2.5"'}
FILLS = {"QK": "#222", "PV": "url(#lines)", "load": "#fff", "store": "#bbb", "softmax": "#999", "runs": "#222"}


class Canvas:
    def __init__(self, steps):
        self.unit = min(14, (740 - LEFT) / (steps + 1))    # a step's width
        self.out, self.y = [], HEAD

    def x(self, step):
        return LEFT + step * self.unit

    def text(self, x, y, text, size=11, anchor="start", fill="#222", more=""):
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" '
                        f'text-anchor="{anchor}"{more}>{text}</text>')

    def box(self, start, end, kind, down=3, height=ROW - 6):
        """Of a lane, from one moment to another, in steps."""
        x, width = self.x(start), (end - start) * self.unit
        self.out.append(f'<rect x="{x:.1f}" y="{self.y + down:.1f}" width="{width:.1f}" height="{height}" '
                        f'fill="{FILLS[kind]}" stroke="#222" stroke-width="0.8"/>')

    def line(self, start, end, style):
        y = self.y + ROW / 2
        self.out.append(f'<path d="M{self.x(start):.1f} {y:.1f}H{self.x(end):.1f}" fill="none" {STYLES[style]}/>')

    def lane(self, name):
        self.text(LEFT - 8, self.y + ROW - 5, name, 11, "end")

    def next(self, gap=0):
        self.y += ROW + gap


def draw_copies(canvas, rows):
    for buffer, spans in copies(rows).items():
        canvas.lane(buffer)
        for start, end, load in spans:
            canvas.box(start + 0.5, end, "load" if load else "store")
        canvas.next()


def draw_thread(canvas, rows, warp, name, busy=()):
    """A warp: lines where it waits, and where it runs boxes; `busy` are the steps of its softmax."""
    canvas.lane(name)
    mine = waits(rows, warp)
    end = [row["to"] for row in rows if row["event"] == "exit" and row["who"] == warp]
    for start, (stop, style) in mine.items():
        canvas.line(start + 1, stop, style)
    for step in sorted({*mine, *(stop for stop, _ in mine.values()), *end}):
        if step in busy:
            canvas.box(step, step + 1, "softmax")
        else:
            canvas.box(step + 0.3, step + 0.7, "runs")
    canvas.next()


def draw_legend(canvas):
    y = canvas.y + 14
    entries = [("QK", "S = QKᵀ"), ("PV", "O += PV"), ("softmax", "softmax"), ("runs", "runs"),
               ("load", "copy to it"), ("store", "from it")]
    x = LEFT
    for kind, text in entries:
        width = 6 if kind == "runs" else 16
        canvas.out.append(f'<rect x="{x}" y="{y - 9}" width="{width}" height="10" fill="{FILLS[kind]}" '
                          'stroke="#222" stroke-width="0.8"/>')
        canvas.text(x + width + 5, y, text)
        x += 42 + 6.2 * len(text)
    canvas.text(LEFT - 8, y + 20, "waits for", anchor="end")
    x = LEFT
    for style, text in ("products", "its products"), ("turn", "its turn"), ("mbarrier", "an mbarrier"), \
            ("meeting", "all threads, or registers"):
        canvas.out.append(f'<path d="M{x} {y + 16}h30" fill="none" {STYLES[style]}/>')
        canvas.text(x + 36, y + 20, text)
        x += 56 + 6.2 * len(text)
    canvas.y = y + 30


def figure(rows, title):
    steps = max(row["to"] for row in rows)
    canvas = Canvas(steps)
    canvas.text(20, 24, title, 14, more=' font-weight="bold"')
    for step in range(0, steps + 1, 10):
        canvas.text(canvas.x(step), HEAD - 8, f"{'step ' if step == 0 else ''}{step}", 10)
    first = warpgroups(rows)[0][0]
    if first:    # the warpgroup before it has roles
        for n, role in enumerate(ROLES[kernel_of(rows)]):
            draw_thread(canvas, rows, f"warp {n}", role)
        canvas.next(-ROW + 6)
    draw_copies(canvas, rows)
    for n, (number, warp) in enumerate(warpgroups(rows)):
        canvas.next(-ROW + 8)
        canvas.lane(f"products {n + 1}")
        for start, end, name in products(rows, number):    # S above, O below: both may be under way
            canvas.box(start + 0.5, end, name, 0 if name == "QK" else 9, 9)
        canvas.next()
        draw_thread(canvas, rows, warp, f"warpgroup {n + 1}", softmaxes(rows, number))
    grid = "".join(f"M{canvas.x(step):.1f} {HEAD - 4}V{canvas.y:.1f}" for step in range(0, steps + 1, 5))
    draw_legend(canvas)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {canvas.y:.0f}" font-family="sans-serif">
  <!-- Drawn by notes/timeline.py from the simulator's log. Steps are an order, no time. -->
  <title>{title}</title>
  <defs><pattern id="lines" width="4" height="4" patternUnits="userSpaceOnUse"><path d="M0 4L4 0" stroke="#222"/>\
<rect width="4" height="4" fill="none"/></pattern></defs>
  <path d="{grid}" stroke="#ddd" stroke-width="0.6"/>
  {chr(10).join(canvas.out).replace(chr(10), chr(10) + '  ')}
</svg>
"""


# ---- what overlaps -------------------------------------------------------------------------------


def company(rows):
    """How many softmaxes there are, and during how many of them a product is under way: one of the warpgroup's
    own, one of another."""
    total = own = others = 0
    for number, _ in warpgroups(rows):
        for step in softmaxes(rows, number):
            under_way = [n for n, _ in warpgroups(rows) for start, end, _ in products(rows, n) if start <= step < end]
            total += 1
            own += number in under_way
            others += any(n != number for n in under_way)
    return total, own, others


def count():
    print("kernel      softmaxes   with an own product   with another's product")
    for kernel in RUNGS:
        print("{:10s} {:10d} {:21d} {:24d}".format(kernel, *company(log_of(kernel))))


def main(words):
    if words == ["--count"]:
        count()
    elif len(words) == 2:
        with open(words[0]) as log, open(words[1], "w") as out:
            rows = block_0(log)
            out.write(figure(rows, kernel_of(rows)))
    elif words in ([], ["--check"]):
        for n, kernel in enumerate(RUNGS):
            path = f"notes/figures/timeline_{kernel.replace('-', '_')}.svg"
            new = figure(log_of(kernel), f"rung {n + 1}, {kernel}: a block's steps in the simulator")
            if words:
                with open(path) as file:
                    if file.read() != new:
                        sys.exit(f"{path}: the simulator does something else now; make timelines draws it again")
            else:
                with open(path, "w") as file:
                    file.write(new)
    else:
        sys.exit("usage: notes/timeline.py [LOG FIGURE | --check | --count]")


if __name__ == "__main__":
    main(sys.argv[1:])
