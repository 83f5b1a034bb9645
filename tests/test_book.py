"""Tests of notes/book.py: small books in a temporary folder, good ones and wrong ones.

    python3 tests/test_book.py

A wrong book gives exactly the expected lines and exit status 1, and nothing is written.
"""
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

NOTES = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "notes"))
BOOK, FILL = os.path.join(NOTES, "book.py"), os.path.join(NOTES, "fill.py")

SOURCE = """int before;
    //> outer
    // a < b && c
    int x = 1;
    //> inner
        int y = "$2 // $3";
    //< inner
    int z;
    //< outer
"""
CSV = """# where the numbers are from
device,kernel,n,bytes,us,rate,parts
"NVIDIA H200",slow,1024,2560000000,5000,0.1234,a:30.5;b:10
"NVIDIA H200",fast,1024,640000000,1250,0.5,a:1;b:2
"NVIDIA H200",fast,2048,,,,
"""
CHAPTER = """# One

*(Numbers and code are filled in by `make book`: read build/book/book.html.)*

{{step01/a.cu#outer}}

{{step01/a.cu#inner}}
"""
GOOD = {
    "notes/README.md": "# A small book\n\n* [One](one.md)\n* [Two](two.md)\n",
    "notes/one.md": CHAPTER,
    "notes/two.md": "# Two\n\n## A `part` of it\n\nText.\n",
    "notes/x.csv": CSV,
    "notes/figure.svg": '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"></svg>',
    "step01/a.cu": SOURCE,
    "step01/Makefile": "#> rule\nrun:\n\techo\n#< rule\n",
    "tools/b.py": "def f():\n    #> body\n    return 1    # one\n    #< body\n",
    "notes/rule.md": "",
}
GOOD["notes/README.md"] += "* [Rule](rule.md)\n"
GOOD["notes/rule.md"] = "# Rule\n\n{{step01/Makefile#rule}}\n"

# (what is wrong, files that differ from GOOD, the lines that are printed)
WRONG = [
    ("a region that is not there", {"notes/two.md": "# Two\n\n{{step01/a.cu#outre}}\n"},
     ["notes/two.md: {{step01/a.cu#outre}}: there is no such region"]),
    ("a quote of a file that is not there", {"notes/two.md": "# Two\n\n{{step02/a.cu#outer}}\n"},
     ["notes/two.md: {{step02/a.cu#outer}}: there is no such file"]),
    ("a region within a sentence", {"notes/two.md": "# Two\n\nsee {{step01/a.cu#outer}}\n"},
     ["notes/two.md: {{step01/a.cu#outer}}: a region has to be alone in its paragraph"]),
    ("defined twice", {"step01/a.cu": SOURCE + "//> inner\n//< inner\n"},
     ["step01/a.cu: region inner is defined twice"]),
    ("never closed", {"step01/a.cu": SOURCE.replace("    //< outer\n", "")},
     ["step01/a.cu: region outer is opened but never closed"]),
    ("never closed, within another", {"step01/a.cu": SOURCE.replace("    //< inner\n", "")},
     ["step01/a.cu: region inner is opened but never closed"]),
    ("never opened", {"step01/a.cu": SOURCE + "//< other\n"},
     ["step01/a.cu: region other is closed but not opened"]),
    ("unused in a step", {"step01/a.cu": SOURCE + "//> other\n//< other\n"},
     ["step01/a.cu: region other is quoted by no chapter"]),
    ("unused in common", {"common/sim/c.h": "//> other\n//< other\n"},
     ["common/sim/c.h: region other is quoted by no chapter"]),
    ("unused in Python", {"step01/a.py": "#> other\n#< other\n"},
     ["step01/a.py: region other is quoted by no chapter"]),
    ("no row", {"notes/two.md": "# Two\n\n{{csv notes/x.csv kernel=none : us | ms}}\n"},
     ["notes/two.md: {{csv notes/x.csv kernel=none : us | ms}}: no rows match"]),
    ("several rows", {"notes/two.md": "# Two\n\nIt takes {{csv notes/x.csv kernel=fast\n: us}}.\n"},
     ["notes/two.md: {{csv notes/x.csv kernel=fast : us}}: 2 rows match"]),
    ("no such column", {"notes/two.md": "# Two\n\n{{csv notes/x.csv kernel=slow : time | ms}}\n"},
     ["notes/two.md: {{csv notes/x.csv kernel=slow : time | ms}}: there is no column time"]),
    ("no such column in a condition", {"notes/two.md": "# Two\n\n{{csv notes/x.csv m=1 : us}}\n"},
     ["notes/two.md: {{csv notes/x.csv m=1 : us}}: there is no column m"]),
    ("no such part", {"notes/two.md": "# Two\n\n{{csv notes/x.csv kernel=slow : parts.c}}\n"},
     ["notes/two.md: {{csv notes/x.csv kernel=slow : parts.c}}: there is no c in column parts"]),
    ("an empty cell", {"notes/two.md": "# Two\n\n{{csv notes/x.csv n=2048 : us}}\n"},
     ["notes/two.md: {{csv notes/x.csv n=2048 : us}}: the cell is empty"]),
    ("no such CSV file", {"notes/two.md": "# Two\n\n{{csv notes/y.csv n=1 : us}}\n"},
     ["notes/two.md: {{csv notes/y.csv n=1 : us}}: there is no file notes/y.csv"]),
    ("no such format", {"notes/two.md": "# Two\n\n{{csv notes/x.csv kernel=slow : us | miles}}\n"},
     ["notes/two.md: {{csv notes/x.csv kernel=slow : us | miles}}: miles is no format"]),
    ("no format", {"notes/two.md": "# Two\n\n{{csv notes/x.csv kernel=slow : us / 2}}\n"},
     ["notes/two.md: {{csv notes/x.csv kernel=slow : us / 2}}: "
      "a calculated number needs a format"]),
    ("not understood", {"notes/two.md": "# Two\n\n{{slow}}\n"},
     ["notes/two.md: {{slow}}: "
      "neither FILE#REGION nor csv FILE COLUMN=VALUE ... : COLUMN | FORMAT"]),
    ("a link to nothing", {"notes/two.md": "# Two\n\n[a](three.md)\n"},
     ["notes/two.md: three.md: there is no notes/three.md"]),
    ("a link to no heading", {"notes/one.md": CHAPTER + "\n[a](two.md#a-part)\n"},
     ["notes/one.md: two.md#a-part: there is no heading #a-part in notes/two.md"]),
    ("a link to a line", {"notes/two.md": "# Two\n\n[a](../step01/a.cu#L3)\n"},
     ["notes/two.md: ../step01/a.cu#L3: there is no heading #L3 in step01/a.cu"]),
    ("an image that is not there", {"notes/two.md": "# Two\n\n![a](none.svg)\n"},
     ["notes/two.md: none.svg: there is no notes/none.svg"]),
    ("a chapter that is not in the list", {"notes/three.md": "# Three\n"},
     ["notes/three.md: notes/README.md has no link to this chapter"]),
    ("nothing quoted", {"notes/two.md": "# Two\n\n{{ }}\n\n<!-- not closed"},
     ["notes/two.md: {{ }}: neither FILE#REGION nor csv FILE COLUMN=VALUE ... : COLUMN | FORMAT"]),
    ("two mistakes, two lines", {"notes/two.md": "# Two\n\n{{a#b}}\n\n[a](b)\n"},
     ["notes/two.md: {{a#b}}: there is no such file", "notes/two.md: b: there is no notes/b"]),
    ("mathematics", {"notes/two.md": "# Two\n\n$\\nonsense{x}$\n"},
     ["notes/two.md: $\\nonsense{x}$: Matplotlib cannot draw this: Unknown symbol: \\nonsense"]),
]

RICH = r"""# Two

## A `part` of it

The formula $S_{ij} = q_i \cdot k_j$ costs \$5, not `$x$` or `{{this}}`. $i < n$.
The $n$-th ("$a$"), or $b$ *c*.

$$
\begin{aligned}
a &= b \\
c &= \frac{d}{e}
\end{aligned}
$$

| left | right | centre |
|---|--:|:-:|
| a \| b | {{csv notes/x.csv kernel=slow : bytes | bytes}} | *c* |

```c
if (a < b && c > d) price = "$1 $2";    // {{not a quote}}
```

```
$ so
x   y
```

```
$ so
{{wide}}
```

<details><summary>Why **that**?</summary>

Because of `<b>`.
</details>

1. one
2. two

   * deeper
     still
3. three

> said _he_

![A figure](figure.svg)
<!-- not to be seen -->

---

See [above](#a-part-of-it), [one](one.md), [its source](../step01/a.cu), <https://example.org/>.

* {{tools}}
""".replace("* {{tools}}", "{{tools/b.py#body}}").replace("{{wide}}", "x" * 101)

NUMBERS = [
    ("{{csv notes/x.csv kernel=slow : bytes | bytes}}", "2.56 GB"),
    ("{{csv notes/x.csv kernel=slow : bytes | integer}}", "2,560,000,000"),
    ("{{csv notes/x.csv kernel=slow : bytes | %.3g}}", "2.56e+09"),
    ("{{csv notes/x.csv kernel=slow : us | ms}}", "5 ms"),
    ("{{csv notes/x.csv kernel=fast n=1024 : us | us}}", "1,250 µs"),
    ("{{csv notes/x.csv kernel=slow : rate | percent}}", "12.3%"),
    ("{{csv notes/x.csv kernel=slow : us}}", "5000"),
    ("{{csv notes/x.csv \"device=NVIDIA H200\"\n  kernel=slow : device}}", "NVIDIA H200"),
    ("{{csv notes/x.csv kernel=slow : bytes / us | integer}}", "512,000"),
    ("{{csv notes/x.csv kernel=slow : (us - 1000) * 2 / n | %.2f}}", "7.81"),
    ("{{csv notes/x.csv kernel=slow : parts.a / (parts.a + parts.b) | percent}}", "75.3%"),
    ("{{csv notes/x.csv kernel=slow : us over csv notes/x.csv\nkernel=fast n=1024 : us | %.1f}}",
     "4.0"),
]

checks = 0


def check(name, got, want):
    global checks
    if got != want:
        sys.exit(f"{name}:\n  got  {got!r}\n  want {want!r}")
    checks += 1


def contains(name, text, part):
    global checks
    if part not in text:
        sys.exit(f"{name}: nowhere is\n{part}")
    checks += 1


def run(files, argument):
    """Exit status, what was printed, and {name: text} of what was written, of these files' book."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
            with open(f"{folder}/{path}", "w") as file:
                file.write(text)
        done = subprocess.run([sys.executable, BOOK, argument], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        written = {}
        if os.path.isdir(f"{folder}/build/book"):
            for name in os.listdir(f"{folder}/build/book"):
                with open(f"{folder}/build/book/{name}") as file:
                    written[name] = file.read()
        return done.returncode, done.stdout, written


def test_wrong_books():
    with ThreadPoolExecutor() as pool:
        done = pool.map(lambda wrong: run({**GOOD, **wrong[1]}, "--check"), WRONG)
        for (name, _, lines), result in zip(WRONG, done):
            check(name, result, (1, "\n".join(lines) + "\n", {}))
    name, files, lines = WRONG[0]
    check("nothing is written", run({**GOOD, **files}, "build/book"), (1, lines[0] + "\n", {}))


def test_regions():
    check("a good book", run(GOOD, "--check"), (0, "", {}))
    status, printed, written = run(GOOD, "build/book")
    check("a good book is written", (status, printed), (0, ""))
    check("nested regions, indentation, captions", written["one.md"], """# One

*outer* in [`step01/a.cu`](../../step01/a.cu):

```cuda
// a < b && c
int x = 1;
    int y = "$2 // $3";
int z;
```

*inner* in [`step01/a.cu`](../../step01/a.cu):

```cuda
int y = "$2 // $3";
```
""")
    contains("code is escaped", written["book.html"], """<p class="caption"><em>outer</em> in <a \
href="../../step01/a.cu"><code>step01/a.cu</code></a></p>
<pre><code class="language-cuda"><i>// a &lt; b &amp;&amp; c</i>
int x = 1;
    int y = "$2 // $3";
int z;
</code></pre>""")
    contains("a Makefile", written["rule.md"], "```make\nrun:\n\techo\n```\n")


def test_numbers():
    text = "# Two\n\n" + "\n\n".join(f"so {source}." for source, _ in NUMBERS) + "\n"
    _, _, written = run({**GOOD, "notes/two.md": text}, "build/book")
    got = written["two.md"].strip().split("\n\n")[1:]
    check("as many numbers", len(got), len(NUMBERS))
    for (source, want), paragraph in zip(NUMBERS, got):
        check(source, paragraph, f"so {want}.")


def test_page():
    files = {**GOOD, "notes/two.md": RICH}
    status, printed, written = run(files, "build/book")
    check("a rich chapter", (status, printed), (0, ""))
    page = written["book.html"]
    check("the same every time", run(files, "build/book")[2], written)
    check("no quote is left but those in code", page.count("{{"), 2)
    for label in (r"S_{ij} = q_i \cdot k_j", "i &lt; n", r"= \frac{d}{e}"):
        contains("mathematics", page, f'<svg class="math" role="img" aria-label="{label}" view')
    check("formulas", page.count("<svg"), 9)
    whole = re.findall('<span class="whole">(.*?)<svg.*?</svg>(.*?)</span>', page)
    check("formulas with what belongs to them", whole, [("", "."), ("", "-th"), ('("', '"),')])
    for part in (
            "</svg> costs $5, not <code>$x$</code> or <code>{{this}}</code>.",
            '<nav>\n<ol>\n<li><a href="#README">A small book</a></li>\n'
            '<li><a href="#one">One</a></li>\n<li><a href="#two">Two</a><ol>\n'
            '<li><a href="#two-a-part-of-it">A <code>part</code> of it</a>',
            '<h2 id="two-a-part-of-it">A <code>part</code> of it</h2>',
            '<tr><th>left</th><th style="text-align:right">right</th>'
            '<th style="text-align:center">centre</th></tr>\n'
            '<tr><td>a | b</td><td style="text-align:right">2.56 GB</td>'
            '<td style="text-align:center"><em>c</em></td></tr>',
            'if (a &lt; b &amp;&amp; c &gt; d) price = "$1 $2";    <i>// {{not a quote}}</i>',
            "<details><summary>Why <strong>that</strong>?</summary>\n"
            "<p>Because of <code>&lt;b&gt;</code>.</p>\n</details>",
            "<ol>\n<li><p>one</p></li>\n<li><p>two</p>\n<ul>\n<li>deeper\nstill</li>\n</ul></li>\n"
            "<li><p>three</p></li>\n</ol>",
            "<blockquote>\n<p>said <em>he</em></p>\n</blockquote>",
            '<figure><img class="light" alt="A figure" src="data:image/svg+xml;base64,',
            'See <a href="#two-a-part-of-it">above</a>, <a href="#one">one</a>, '
            '<a href="../../step01/a.cu">its source</a>, '
            '<a href="https://example.org/">https://example.org/</a>.',
            '<pre><code>$ so\nx   y\n</code></pre>',
            f'<pre><code class="language-wide">$ so\n{"x" * 101}\n</code></pre>',
            '<pre><code class="language-python">return 1    <i># one</i>\n</code></pre>'):
        contains("the page", page, part)
    check("comments are dropped", "not to be seen" in page, False)
    contains("links of the Markdown", written["two.md"], "![A figure](../../notes/figure.svg)")


def filled(csv_text, block):
    """What notes/fill.py makes of a chapter with this block, and what it complains of."""
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/notes/results")
        with open(f"{folder}/notes/results/t.csv", "w") as file:
            file.write(csv_text)
        with open(f"{folder}/notes/one.md", "w") as file:
            file.write(f"<!-- {block} -->\n<!-- end -->\n")
        done = subprocess.run([sys.executable, FILL, "notes/one.md"], cwd=folder, text=True,
                              stderr=subprocess.PIPE)
        with open(f"{folder}/notes/one.md") as file:
            return file.read(), done.stderr


def test_filled_ladder():
    """A row for each kernel of one problem, and a link to the CSV that leads from the chapter's folder."""
    with open(os.path.join(NOTES, "results", "h200_fp32.csv")) as file:
        csv_text = file.read()
    page, _ = filled(csv_text, "ladder: notes/results/t.csv head_dim=128 causal=0 seqlen_q=4096")
    contains("a ladder", page, "([all columns, with the commands](results/t.csv)).\n<!-- end -->")
    contains("a ladder", page, "| step02_online_softmax | one-pass |")
    check("rows of a ladder", page.count("| step0"), 9)
    contains("a ladder of two problems",
             filled(csv_text, "ladder: notes/results/t.csv head_dim=128 seqlen_q=4096")[1],
             "2 problems in one ladder")


def test_filled_table():
    csv_text = "seqlen_q,kernel,result,x,y\n8,a,ok,1,2\n8,b,ok,3,4\n16,b,ok,5,6\n16,c,wrong,7,8\n"
    where = "table: notes/results/t.csv"
    page, _ = filled(csv_text, f"{where} : rows seqlen_q, columns kernel : x + y | %.1f")
    contains("a table", page, "| N | a | b | c |\n|--:|--:|--:|--:|\n| 8 | 3.0 | 7.0 | – |\n"
                              "| 16 | – | 11.0 | – |\n<!-- end -->")
    page, _ = filled(csv_text, f"{where} kernel=b,a : rows kernel, columns seqlen_q : x | %.0f")
    contains("a table in the order of its conditions", page, "| b | 3 | 5 |\n| a | 1 | – |\n")
    contains("two rows for one cell",
             filled(csv_text, f"{where} : rows result, columns kernel : x | %.0f")[1],
             "two rows have result ok, kernel b")
    rounds = "seqlen,head_dim,round,ratio,command\n" + "".join(
        f"8,{d},{n},{ratio},make it\n" for d, ratios in ((64, (3, 1, 2)), (128, (7, 5))) for n, ratio in enumerate(ratios))
    page, _ = filled(rounds, f"{where} : rows seqlen, columns head_dim : ratio | %.1f")
    contains("medians of all rounds", page, "| N | d = 64 | d = 128 |\n|--:|--:|--:|\n| 8 | 2.0 | 6.0 |\n")
    page, _ = filled(rounds, f"{where} round=0 : rows seqlen, columns head_dim : ratio | %.1f")
    contains("one round", page, "| 8 | 3.0 | 7.0 |\n")
    contains("a table without a format", filled(csv_text, f"{where} : rows x, columns y : x")[1],
             "rows COLUMN, columns COLUMN")


test_wrong_books()
test_filled_ladder()
test_filled_table()
test_regions()
test_numbers()
test_page()
print(f"notes/book.py: {checks} checks passed")
