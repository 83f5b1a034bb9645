#!/usr/bin/python3
r"""Makes the chapters notes/*.md, and a book of them, from notes/source/*.md.

    notes/book.py               writes each chapter, notes/NAME.md from notes/source/NAME.md
    notes/book.py PAGE.html     writes all chapters as one page
    notes/book.py --check       writes nothing; each mistake is one line, and the exit status 1. One is
                                a chapter that is not what its source makes

The sources quote code and numbers by name, in {{...}}, and copy neither. Their links are those of the
chapter: they lead from notes/. notes/README.md is the front page, and has no source. The chapters that
it links to are the book, in that order.

A paragraph that holds nothing but the name of a region stands for its source:

    {{step00_naive/attention.cu#softmax}}

A region lies between the lines `//> softmax` and `//< softmax` of the file; in Python files and
Makefiles `#> softmax` and `#< softmax`. Regions may nest: the markers within are left out. Every
region in step*/ and common/ has to be quoted somewhere.

Within a sentence, {{csv ...}} stands for one number of a CSV file. Conditions choose its row, and
exactly one row must match. Then, after a colon, comes the column; after a bar, how to write it.
With LADDER for a file that has one row for each kernel:

    {{csv LADDER kernel=naive : asked_load | bytes}}      5.24 TB
    {{csv LADDER kernel=naive : asked_load | integer}}    5,235,565,133,824
    {{csv LADDER kernel=naive : time_us | ms}}            616 ms; | us likewise
    {{csv LADDER kernel=naive : of_bar_O | percent}}      13.9%
    {{csv LADDER kernel=naive : TFLOPs | %.2f}}           0.89
    {{csv LADDER kernel=naive : seqlen_q}}                4096, as it stands in the file

Instead of a column there may be arithmetic (+ - * / and parentheses) with several, always with a
format. One part of a cell such as "scores:549753.66;softmax:6903.49" is a column too, with a dot.
`over` divides by a number of another row or file. A condition with spaces is put in quotes:

    {{csv LADDER kernel=naive : (asked_load + asked_store) / compulsory | %.0f}}
    {{csv LADDER kernel=naive : launch_us.scores / time_us | percent}}
    {{csv LADDER kernel=naive : time_us over csv LADDER kernel=tiled : time_us | %.1f}}
    {{csv LADDER "device=NVIDIA H200" : date}}

A file with a column `round` has several measurements of the same thing; its numbers are their medians.

Mathematics is TeX: $...$ in a sentence, $$...$$ displayed. A chapter has it as GitHub reads it (see
for_github); for the page of all chapters Matplotlib draws it, which knows a part of TeX (see
markdown.py).
"""
import functools
import glob
import os
import re
import sys
import textwrap

from cells import number
from markdown import CODE, HEADING, MATH, TARGET, VERBATIM, Page, slug

FRONT = "notes/README.md"
errors = []    # lines to print


def complain(where, what):
    errors.append(f"{where}: {' '.join(what.split())}")


@functools.lru_cache(maxsize=None)
def read(path):
    with open(path) as file:
        return file.read()


# ---- regions of source files ---------------------------------------------------------------------

LANGUAGES = {".c": "c", ".h": "c", ".cu": "cuda", ".cuh": "cuda", ".cpp": "cpp", ".py": "python",
             ".mk": "make", "Makefile": "make"}


def language(path):
    return LANGUAGES.get(os.path.splitext(path)[1] or os.path.basename(path), "")


def comment_mark(kind):
    return "//" if kind in ("c", "cuda", "cpp") else "#"


@functools.lru_cache(maxsize=None)
def regions(path):
    """{name: text} of the regions of a file, without markers and common indentation."""
    marker = re.compile(rf"\s*{comment_mark(language(path))}([<>])\s*([\w-]+)\s*")
    found, opened = {}, []    # lines by name; names that are open, the innermost last
    for line in read(path).splitlines():
        mark = marker.fullmatch(line)
        if not mark:
            for name in opened:
                found[name].append(line)
        elif mark[1] == ">":
            if mark[2] in found:
                complain(path, f"region {mark[2]} is defined twice")
            found[mark[2]] = []
            opened.append(mark[2])
        elif mark[2] not in opened:
            complain(path, f"region {mark[2]} is closed but not opened")
        else:
            while opened[-1] != mark[2]:
                complain(path, f"region {opened.pop()} is opened but never closed")
            opened.pop()
    for name in opened:
        complain(path, f"region {name} is opened but never closed")
    return {name: textwrap.dedent("\n".join(lines)).strip("\n") for name, lines in found.items()}


def quote(path, name):
    """The region as Markdown: a caption (CAPTION finds it again), then the code."""
    if not os.path.isfile(path):
        raise ValueError("there is no such file")
    if name not in regions(path):
        raise ValueError("there is no such region")
    return (f"*{name}* in [`{path}`](../{path}):\n\n"
            f"```{language(path)}\n{regions(path)[name]}\n```")


def check_unused(quoted):
    files = [f for top in ("step*", "common") for f in glob.glob(f"{top}/**", recursive=True)]
    for path in sorted(f for f in files if language(f) and os.path.isfile(f)):
        for name in regions(path):
            if (path, name) not in quoted:
                complain(path, f"region {name} is quoted by no chapter")


# ---- from a source to a chapter ------------------------------------------------------------------

# With the end of the line before: no line begins with a number, for "1. " would be an item of a list.
QUOTE = r"(?P<newline>(?<=.)\n *)?\{\{(?P<quote>[^{}]+)\}\}"
TOKEN = re.compile(rf"{CODE}|{MATH}|\\.|{QUOTE}|{TARGET}", re.S)
REGION = re.compile(r"(\n?)( *)\{\{([^{}#\s]+)#([^{}#\s]+)\}\}(\n?)")


def prose(change, text):
    """The text, changed wherever it is neither fenced code nor a comment."""
    out, end = "", 0
    for verbatim in VERBATIM.finditer(text):
        out += change(text[end:verbatim.start()]) + verbatim[0]
        end = verbatim.end()
    return out + change(text[end:])


class Chapter:
    """One page of Markdown, its quotes filled in. The front page is its own source."""

    def __init__(self, source):
        self.source = source
        self.path = "notes/" + os.path.basename(source)
        self.name = os.path.splitext(os.path.basename(source))[0]
        self.quoted = set()    # (file, region)
        self.text = prose(self.paragraphs, read(source))

    def complain(self, what):
        complain(self.source, what)

    def paragraphs(self, text):
        return "".join(map(self.paragraph, re.split(r"(\n\s*\n)", text)))

    def paragraph(self, text):
        region = REGION.fullmatch(text)
        if not region:
            return TOKEN.sub(self.number, text)
        before, indent, path, name, after = region.groups()
        self.quoted.add((path, name))
        try:
            return before + textwrap.indent(quote(path, name), indent) + after
        except ValueError as error:
            self.complain(f"{text.strip()}: {error}")
            return text

    def number(self, found):
        """What stands for a {{...}} in a sentence; all else is left as it is."""
        if not found["quote"]:
            return found[0]
        try:
            if re.fullmatch(r"\s*[^#\s]+#\S+\s*", found["quote"]):
                raise ValueError("a region has to be alone in its paragraph")
            return " " * bool(found["newline"]) + number(" ".join(found["quote"].split()))
        except (ValueError, TypeError, SyntaxError, ZeroDivisionError) as error:
            self.complain(f"{found[0]}: {error}")
            return found[0]

    def target(self, link):
        """The file that a link leads to, and the heading there, if it names one."""
        path, _, anchor = link.partition("#")
        return os.path.normpath(os.path.join("notes", path)) if path else self.path, anchor


def for_github(found):
    """In $x$ GitHub takes some backslashes and underscores for Markdown; not in $`x`$ and ```math."""
    if found["math"]:
        return f"$`{found['math']}`$"
    if not found["display"]:
        return found[0]
    indent = found.string[:found.start()].rpartition("\n")[2]    # in a list
    return f"```math\n{indent}{found['display'].strip()}\n{indent}```"


def readable(chapter):
    """The text of notes/NAME.md."""
    head = f"<!-- Made from {chapter.source} by make fill: edit that one. -->\n\n"
    return head + prose(lambda text: TOKEN.sub(for_github, text), chapter.text)


def check_links(chapter, chapters):
    for found in TOKEN.finditer(VERBATIM.sub("", chapter.text)):
        link = found["link"]
        if not link or re.match(r"[a-z]+:", link):
            continue
        file, anchor = chapter.target(link)
        if file not in chapters and not os.path.exists(file):
            chapter.complain(f"{link}: there is no {file}")
        elif anchor and not (file.endswith(".md") and anchor in anchors(file, chapters)):
            chapter.complain(f"{link}: there is no heading #{anchor} in {file}")


def anchors(file, chapters):
    text = chapters[file].text if file in chapters else read(file)
    lines, taken = VERBATIM.sub("", text).splitlines(), {}
    return {slug(m[2], taken) for m in map(HEADING.fullmatch, lines) if m}


# ---- the page -----------------------------------------------------------------------------------

STYLE = os.path.join(os.path.dirname(__file__), "book.css")
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{contents}
<main>
{sections}
</main>
</body>
</html>
"""


def contents(pages):
    """The chapters' titles, and under each its headings of the second level."""
    out = "<nav>\n<ol>\n"
    for page in pages:
        parts = [f'<li><a href="#{anchor}">{text}</a></li>'
                 for level, anchor, text in page.headings if level == 2]
        inner = "\n".join(["<ol>", *parts, "</ol>"]) if parts else ""
        out += f'<li><a href="#{page.chapter.name}">{page.title()}</a>{inner}</li>\n'
    return out + "</ol>\n</nav>"


def book(pages):
    sections = (f'<section id="{page.chapter.name}">\n{page.html}\n</section>' for page in pages)
    return PAGE.format(title=re.sub("<[^>]*>", "", pages[0].title()), style=read(STYLE),
                       contents=contents(pages), sections="\n".join(sections))


# ---- the whole -----------------------------------------------------------------------------------

def sources():
    """The front page and the sources of the chapters that it links to, each once."""
    links = re.findall(r"\]\((\w[\w.-]*\.md)\)", VERBATIM.sub("", read(FRONT)))
    found = list(dict.fromkeys(f"notes/source/{link}" for link in links))
    there = sorted(glob.glob("notes/source/*.md"))
    for path in there:
        if path not in found:
            complain(path, f"{FRONT} has no link to this chapter")
    for path in sorted(glob.glob("notes/*.md")):
        if path != FRONT and f"notes/source/{os.path.basename(path)}" not in there:
            complain(path, "this chapter has no source in notes/source")
    # Of a link to nothing it is check_links that complains.
    return [FRONT, *(path for path in found if path in there)]


def stale(chapter):
    return not os.path.isfile(chapter.path) or read(chapter.path) != readable(chapter)


def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def main(words):
    if len(words) > 1 or words and words != ["--check"] and not words[0].endswith(".html") or not os.path.isfile(FRONT):
        sys.exit("usage, where notes/ is: notes/book.py [PAGE.html | --check]")
    made = [Chapter(path) for path in sources()]
    chapters = {chapter.path: chapter for chapter in made}
    for chapter in made:
        check_links(chapter, chapters)
    check_unused(set().union(*(chapter.quoted for chapter in made)))
    folder = os.path.dirname(words[0]) if words else "build/book"
    pages = [Page(chapter, chapters, folder) for chapter in made]    # finds mistakes in formulas
    if errors:
        sys.exit("\n".join(dict.fromkeys(errors)))
    if words == ["--check"]:
        sys.exit("\n".join(f"{chapter.path} is not what {chapter.source} makes: make fill"
                           for chapter in made[1:] if stale(chapter)) or 0)
    if words:
        write(words[0], book(pages))
    else:
        for chapter in made[1:]:
            write(chapter.path, readable(chapter))


if __name__ == "__main__":
    main(sys.argv[1:])
