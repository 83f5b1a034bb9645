"""Tests of notes/book.py: small books in a temporary folder, good ones and wrong ones.

    python3 tests/test_book.py

A wrong book gives exactly the expected lines and exit status 1, and nothing is written.
"""
import glob
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

{{step01/a.cu#outer}}

{{step01/a.cu#inner}}
"""
GOOD = {
    "notes/README.md": "# A small book\n\n* [One](one.md)\n* [Two](two.md)\n",
    "notes/source/one.md": CHAPTER,
    "notes/source/two.md": "# Two\n\n## A `part` of it\n\nText.\n",
    "notes/x.csv": CSV,
    "notes/figure.svg": '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"></svg>',
    "step01/a.cu": SOURCE,
    "step01/Makefile": "#> rule\nrun:\n\techo\n#< rule\n",
    "tools/b.py": "def f():\n    #> body\n    return 1    # one\n    #< body\n",
    "notes/source/rule.md": "# Rule\n\n{{step01/Makefile#rule}}\n",
}
GOOD["notes/README.md"] += "* [Rule](rule.md)\n"

# (what is wrong, files that differ from GOOD, the lines that are printed)
WRONG = [
    ("a region that is not there", {"notes/source/two.md": "# Two\n\n{{step01/a.cu#outre}}\n"},
     ["notes/source/two.md: {{step01/a.cu#outre}}: there is no such region"]),
    ("a quote of a file that is not there", {"notes/source/two.md": "# Two\n\n{{step02/a.cu#outer}}\n"},
     ["notes/source/two.md: {{step02/a.cu#outer}}: there is no such file"]),
    ("a region within a sentence", {"notes/source/two.md": "# Two\n\nsee {{step01/a.cu#outer}}\n"},
     ["notes/source/two.md: {{step01/a.cu#outer}}: a region has to be alone in its paragraph"]),
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
    ("no row", {"notes/source/two.md": "# Two\n\n{{csv notes/x.csv kernel=none : us | ms}}\n"},
     ["notes/source/two.md: {{csv notes/x.csv kernel=none : us | ms}}: no rows match"]),
    ("several rows", {"notes/source/two.md": "# Two\n\nIt takes {{csv notes/x.csv kernel=fast\n: us}}.\n"},
     ["notes/source/two.md: {{csv notes/x.csv kernel=fast : us}}: 2 rows match"]),
    ("no such column", {"notes/source/two.md": "# Two\n\n{{csv notes/x.csv kernel=slow : time | ms}}\n"},
     ["notes/source/two.md: {{csv notes/x.csv kernel=slow : time | ms}}: there is no column time"]),
    ("no such column in a condition", {"notes/source/two.md": "# Two\n\n{{csv notes/x.csv m=1 : us}}\n"},
     ["notes/source/two.md: {{csv notes/x.csv m=1 : us}}: there is no column m"]),
    ("no such part", {"notes/source/two.md": "# Two\n\n{{csv notes/x.csv kernel=slow : parts.c}}\n"},
     ["notes/source/two.md: {{csv notes/x.csv kernel=slow : parts.c}}: there is no c in column parts"]),
    ("an empty cell", {"notes/source/two.md": "# Two\n\n{{csv notes/x.csv n=2048 : us}}\n"},
     ["notes/source/two.md: {{csv notes/x.csv n=2048 : us}}: the cell is empty"]),
    ("no such CSV file", {"notes/source/two.md": "# Two\n\n{{csv notes/y.csv n=1 : us}}\n"},
     ["notes/source/two.md: {{csv notes/y.csv n=1 : us}}: there is no file notes/y.csv"]),
    ("no such format", {"notes/source/two.md": "# Two\n\n{{csv notes/x.csv kernel=slow : us | miles}}\n"},
     ["notes/source/two.md: {{csv notes/x.csv kernel=slow : us | miles}}: miles is no format"]),
    ("no format", {"notes/source/two.md": "# Two\n\n{{csv notes/x.csv kernel=slow : us / 2}}\n"},
     ["notes/source/two.md: {{csv notes/x.csv kernel=slow : us / 2}}: "
      "a calculated number needs a format"]),
    ("not understood", {"notes/source/two.md": "# Two\n\n{{slow}}\n"},
     ["notes/source/two.md: {{slow}}: "
      "neither FILE#REGION nor csv FILE COLUMN=VALUE ... : COLUMN | FORMAT"]),
    ("a link to nothing", {"notes/source/two.md": "# Two\n\n[a](three.md)\n"},
     ["notes/source/two.md: three.md: there is no notes/three.md"]),
    ("a link to no heading", {"notes/source/one.md": CHAPTER + "\n[a](two.md#a-part)\n"},
     ["notes/source/one.md: two.md#a-part: there is no heading #a-part in notes/two.md"]),
    ("a link to a line", {"notes/source/two.md": "# Two\n\n[a](../step01/a.cu#L3)\n"},
     ["notes/source/two.md: ../step01/a.cu#L3: there is no heading #L3 in step01/a.cu"]),
    ("an image that is not there", {"notes/source/two.md": "# Two\n\n![a](none.svg)\n"},
     ["notes/source/two.md: none.svg: there is no notes/none.svg"]),
    ("a chapter that is not in the list", {"notes/source/three.md": "# Three\n"},
     ["notes/source/three.md: notes/README.md has no link to this chapter"]),
    ("a chapter without a source", {"notes/three.md": "# Three\n"},
     ["notes/three.md: this chapter has no source in notes/source"]),
    ("nothing quoted", {"notes/source/two.md": "# Two\n\n{{ }}\n\n<!-- not closed"},
     ["notes/source/two.md: {{ }}: neither FILE#REGION nor csv FILE COLUMN=VALUE ... : COLUMN | FORMAT"]),
    ("two mistakes, two lines", {"notes/source/two.md": "# Two\n\n{{a#b}}\n\n[a](b)\n"},
     ["notes/source/two.md: {{a#b}}: there is no such file", "notes/source/two.md: b: there is no notes/b"]),
    ("mathematics", {"notes/source/two.md": "# Two\n\n$\\nonsense{x}$\n"},
     ["notes/source/two.md: $\\nonsense{x}$: Matplotlib cannot draw this: Unknown symbol: \\nonsense"]),
    ("Markdown where GitHub reads none",
     {"notes/source/two.md": "# Two\n\n<details><summary>Why `x`?</summary>\n\nSo.\n</details>\n"},
     ["notes/source/two.md: <details><summary>Why `x`?</summary>: "
      "GitHub reads no Markdown in this line"]),
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

<details><summary>Why a &lt; b?</summary>

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


def run(files, *arguments):
    """Exit status, what was printed, and {path: text} of what was written, of these files' book."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
            with open(f"{folder}/{path}", "w") as file:
                file.write(text)
        done = subprocess.run([sys.executable, BOOK, *arguments], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        written = {}
        for path in glob.glob("**/*.*", root_dir=folder, recursive=True):
            with open(f"{folder}/{path}") as file:
                text = file.read()
            if files.get(path) != text:
                written[path] = text
        return done.returncode, done.stdout, written


def test_wrong_books():
    with ThreadPoolExecutor() as pool:
        done = pool.map(lambda wrong: run({**GOOD, **wrong[1]}, "--check"), WRONG)
        for (name, _, lines), result in zip(WRONG, done):
            check(name, result, (1, "\n".join(lines) + "\n", {}))
    name, files, lines = WRONG[0]
    for argument in ([], ["book.html"]):
        check("nothing is written", run({**GOOD, **files}, *argument), (1, lines[0] + "\n", {}))


def test_stale_chapters():
    """Of a chapter that is not what its source, the code and the numbers make."""
    def lines(*names):
        return "".join(f"notes/{n}.md is not what notes/source/{n}.md makes: make fill\n" for n in names)
    number = "# Two\n\n{{csv notes/x.csv kernel=slow : us | ms}}\n"
    good = {**GOOD, "notes/source/two.md": number}
    check("no chapter is made yet", run(good, "--check"), (1, lines("one", "two", "rule"), {}))
    status, printed, chapters = run(good)
    check("chapters are made", (status, printed, sorted(chapters)),
          (0, "", ["notes/one.md", "notes/rule.md", "notes/two.md"]))
    good.update(chapters)
    check("made again", run(good), (0, "", {}))
    check("up to date", run(good, "--check"), (0, "", {}))
    for what, changes, stale in (
            ("a CSV file", {"notes/x.csv": CSV.replace(",5000,", ",6000,")}, ["two"]),
            ("the code", {"step01/a.cu": SOURCE.replace("x = 1", "x = 2")}, ["one"]),
            ("a source", {"notes/source/two.md": number + "\nMore.\n"}, ["two"]),
            ("two chapters", {f"notes/{n}.md": chapters[f"notes/{n}.md"] + "\nMore.\n"
                              for n in ("two", "rule")}, ["two", "rule"]),
            ("what no chapter quotes", {"notes/x.csv": CSV.replace(",1250,", ",1300,")}, [])):
        status, printed, _ = run({**good, **changes}, "--check")
        check(f"{what} changed", (status, printed), (int(bool(stale)), lines(*stale)))
    changed = run({**good, "notes/x.csv": CSV.replace(",5000,", ",6000,")})[2]
    check("the new number", (changed["notes/two.md"].split("\n\n")[2], len(changed)), ("6 ms\n", 1))


def test_regions():
    _, _, written = run(GOOD)
    check("nested regions, indentation, captions", written["notes/one.md"], """\
<!-- Made from notes/source/one.md by make fill: edit that one. -->

# One

*outer* in [`step01/a.cu`](../step01/a.cu):

```cuda
// a < b && c
int x = 1;
    int y = "$2 // $3";
int z;
```

*inner* in [`step01/a.cu`](../step01/a.cu):

```cuda
int y = "$2 // $3";
```
""")
    contains("a Makefile", written["notes/rule.md"], "```make\nrun:\n\techo\n```\n")
    status, printed, written = run(GOOD, "build/book/book.html")
    check("a good book is written", (status, printed), (0, ""))
    contains("code is escaped", written["build/book/book.html"], """<p class="caption"><em>outer</em> in <a \
href="../../step01/a.cu"><code>step01/a.cu</code></a></p>
<pre><code class="language-cuda"><i>// a &lt; b &amp;&amp; c</i>
int x = 1;
    int y = "$2 // $3";
int z;
</code></pre>""")


def test_numbers():
    text = "# Two\n\n" + "\n\n".join(f"so {source}." for source, _ in NUMBERS) + "\n"
    _, _, written = run({**GOOD, "notes/source/two.md": text})
    got = written["notes/two.md"].strip().split("\n\n")[2:]
    check("as many numbers", len(got), len(NUMBERS))
    for (source, want), paragraph in zip(NUMBERS, got):
        check(source, paragraph, f"so {want}.")
    text = "# Two\n\nSo\n{{csv notes/x.csv kernel=slow : n / 1024 | %.0f}}. And\n5.\n"
    _, _, written = run({**GOOD, "notes/source/two.md": text})
    contains("no line begins with a number from a file", written["notes/two.md"], "\n\nSo 1. And\n5.\n")


def test_page():
    files = {**GOOD, "notes/source/two.md": RICH}
    status, printed, written = run(files, "build/book/book.html")
    check("a rich chapter", (status, printed), (0, ""))
    page = written["build/book/book.html"]
    check("the same every time", run(files, "build/book/book.html")[2], written)
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
            "<details><summary>Why a &lt; b?</summary>\n"
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


def test_mathematics_for_github():
    """Nothing but formulas and quotes is changed; code has none."""
    want = RICH + "\n* in a list\n\n  $$\n  x \\, y\n  $$\n"
    _, _, written = run({**GOOD, "notes/source/two.md": want})
    for source, chapter in (
            ("$S_{ij} = q_i \\cdot k_j$", "$`S_{ij} = q_i \\cdot k_j`$"), ("$i < n$", "$`i < n`$"),
            ("$n$", "$`n`$"), ('"$a$"', '"$`a`$"'), ("$b$", "$`b`$"),
            ("$$\n\\begin", "```math\n\\begin"), ("{aligned}\n$$", "{aligned}\n```"),
            ("{{csv notes/x.csv kernel=slow : bytes | bytes}}", "2.56 GB"),
            ("  $$\n  x \\, y\n  $$", "  ```math\n  x \\, y\n  ```"),
            ("{{tools/b.py#body}}", "*body* in [`tools/b.py`](../tools/b.py):\n\n"
             "```python\nreturn 1    # one\n```")):
        check(source, want.count(source), 1)
        want = want.replace(source, chapter)
    check("a rich chapter for GitHub", written["notes/two.md"].split("\n\n", 1)[1], want)


def filled(csv_text, block):
    """What notes/fill.py makes of a chapter with this block, and what it complains of."""
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/notes/results")
        os.makedirs(f"{folder}/notes/source")
        with open(f"{folder}/notes/results/t.csv", "w") as file:
            file.write(csv_text)
        with open(f"{folder}/notes/source/one.md", "w") as file:
            file.write(f"<!-- {block} -->\n<!-- end -->\n")
        done = subprocess.run([sys.executable, FILL, "notes/source/one.md"], cwd=folder, text=True,
                              stderr=subprocess.PIPE)
        with open(f"{folder}/notes/source/one.md") as file:
            return file.read(), done.stderr


def test_filled_ladder():
    """A row for each kernel of one problem, and a link to the CSV that leads from notes/."""
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
test_stale_chapters()
test_regions()
test_numbers()
test_page()
test_mathematics_for_github()
print(f"notes/book.py: {checks} checks passed")
