r"""Markdown to HTML: the part of Markdown that the chapters use, and mathematics as drawings.

Headings, paragraphs, lists, tables, block quotes, fenced and indented code, images, links,
emphasis, rules, and <details> with Markdown inside. HTML comments are dropped; <br>, <kbd>, <sub>
and <sup> pass; other HTML is shown as text. Of TeX that goes beyond Matplotlib, {aligned} with its
& and \\ may be displayed, and \text and the words in SAME are understood.
"""
import base64
import functools
import html
import logging
import mimetypes
import os
import re

import matplotlib
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path

# What stands within a line, and is left alone when quotes and links are looked for.
CODE = r"(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)"
MATH = r"\$\$(?P<display>.+?)\$\$|\$(?![\s$])(?P<math>(?:[^$\\]|\\.)+?)(?<!\s)\$(?!\d)"
TARGET = r"\]\((?P<link>[^()\s]+)\)"
# Code blocks and comments.
VERBATIM = re.compile(r"^ *(```+)[^\n]*\n.*?^ *\1 *$|<!--.*?-->", re.S | re.M)
HEADING = re.compile(r"(#{1,6}) +(.*?) *")
# The line above a quoted region, as book.py writes it.
CAPTION = re.compile(r"\*[\w-]+\* in \[`[^`]+`\]\([^)]+\):")


def slug(heading, taken):
    """GitHub's anchor of a heading; `taken` counts those that the page has already."""
    text = re.sub(r"\]\([^)]*\)", "", heading).lower()
    name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
    taken[name] = taken.get(name, -1) + 1
    return f"{name}-{taken[name]}" if taken[name] else name


# ---- mathematics ---------------------------------------------------------------------------------

matplotlib.rcParams["mathtext.fontset"] = "stix"
EM = 1000    # units of a drawing to the size of the letters
# TeX that GitHub knows, in words that Matplotlib knows.
SAME = {r"\le": r"\leq", r"\ge": r"\geq", r"\gets": r"\leftarrow", r"\|": r"\Vert",
        r"\lVert": r"\Vert", r"\rVert": r"\Vert", r"\lvert": "|", r"\rvert": "|",
        r"\land": r"\wedge", r"\lor": r"\vee"}
LIMITS = r"(\\(?:sum|prod|max|min))((?:[_^](?:\{[^{}]*\}|\\[A-Za-z]+|\w))+)"
LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C",
           Path.CLOSEPOLY: "Z"}


def refuse(record):
    """Matplotlib only warns of a letter that its fonts lack."""
    raise ValueError(record.getMessage())


logging.getLogger("matplotlib.mathtext").addFilter(refuse)


def svg_path(path):
    """The outline as SVG writes it; y points down there."""
    def point(x, y):
        return f"{round(x)} {round(-y)}"
    return "".join(
        LETTERS[code] + ("" if code == Path.CLOSEPOLY else " ".join(map(point, xy[::2], xy[1::2])))
        for xy, code in path.iter_segments(simplify=False))


def dialect(tex, display):
    """TeX as Matplotlib draws it best. Displayed, fractions are large; within a line, a sum's
    limits stand beside it, not below. Space around the sum is ours to make in both."""
    text = re.sub(r"\\text(\{[^{}]*\})", lambda m: rf"\mathrm{m[1]}".replace(" ", r"\ "), tex)
    text = re.sub(r"\\([A-Za-z]+|\|)", lambda m: SAME.get(m[0], m[0]), " ".join(text.split()))
    if not display:
        return re.sub(LIMITS, r"{\1}\2\\,", text)
    text = re.sub(LIMITS, r"\1\2\\,", text).replace(r"\frac", r"\dfrac")
    return re.sub(r"\\(sum|prod)(?![a-z])", r"\\,\\\1", text)


@functools.lru_cache(maxsize=None)
def formula(tex, display=False):
    """TeX as inline SVG: outlines of the letters, in the colour and size of the text around it."""
    text = dialect(tex, display)
    font = FontProperties(size=EM)
    try:
        width, height, depth = text_to_path.get_text_width_height_descent(f"${text}$", font, True)
        outline = svg_path(TextPath((0, 0), f"${text}$", size=EM, prop=font))
    except ValueError as error:
        hint = str(error).strip().splitlines()[-1].split(", found")[0]
        hint = hint.removeprefix("ParseFatalException: ")    # in newer versions
        raise ValueError(f"Matplotlib cannot draw this: {hint}") from error
    label = html.escape(" ".join(tex.split()))
    box = f"0 {depth - height:.0f} {width:.0f} {height:.0f}"
    size = f"width:{width / EM:.3g}em;height:{height / EM:.3g}em;vertical-align:{-depth / EM:.3g}em"
    return (f'<svg class="math" role="img" aria-label="{label}" viewBox="{box}" style="{size}">'
            f'<path d="{outline}"/></svg>')


# ---- from Markdown to HTML -----------------------------------------------------------------------

LINK = r"(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\[\]`])*)" + TARGET
STRONG = r"\*\*(?=\S)(?P<strong>(?:`[^`]*`|[^`])+?)(?<!\s)\*\*"
STAR = r"\*(?=[^\s*])(?P<star>(?:`[^`]*`|\*\*[^*]+\*\*|[^*`])+?)(?<!\s)\*"
UNDERSCORE = r"(?<!\w)_(?=[^\s_])(?P<underscore>(?:`[^`]*`|[^_`])+?)(?<!\s)_(?!\w)"
INLINE = re.compile(rf"{CODE}|{MATH}|\\(?P<escaped>[^\w\s])|{LINK}|{STRONG}|{STAR}|{UNDERSCORE}|"
                    r"<(?P<url>https?://[^\s<>]+)>|(?P<tag></?(?:br|kbd|sub|sup)>|&\w+;)|"
                    r"<!--.*?-->", re.S)
# What the end of a line must not part from a formula: marks around it, and the rest of its word.
OPENS = re.compile(r"[(\[“\"]*\Z")
CLOSES = re.compile(r"(-[A-Za-z]+)?[.,;:?)\]%”\"]*")
IMAGE = re.compile(LINK.replace("!?", "!"))
ITEM = re.compile(r" {0,3}([-*+]|\d+[.)]) +(?=\S)")
SEPARATOR = re.compile(r" *\|?( *:?-+:? *\|)+( *:?-+:?)? *\|? *")
NOTES = {"c": r"//.*|/\*.*?\*/", "python": r"#.*", "make": r"#.*"}    # comments, by language
NOTES["cuda"] = NOTES["cpp"] = NOTES["c"]


def code_block(text, kind):
    """Code with its comments marked; a quotation mark may begin a string that holds no comment."""
    def mark(found):
        return f"<i>{found[0]}</i>" if found[1] else found[0]
    text = html.escape(text, quote=False)
    if kind in NOTES:
        text = re.sub(rf'"(?:\\.|[^"\\\n])*"|({NOTES[kind]})', mark, text)
    name = f' class="language-{kind}"' if kind else ""
    return f"<pre><code{name}>{text}\n</code></pre>"


class Page:
    """A chapter as HTML, for a page in a folder. The methods named in BLOCKS take the lines of one
    block off the front."""

    def __init__(self, chapter, chapters, folder):
        self.chapter, self.chapters, self.folder, self.taken = chapter, chapters, folder, {}
        self.headings = []    # (level, id, HTML)
        self.html = self.blocks(chapter.text.splitlines())

    def title(self):
        return self.headings[0][2] if self.headings else self.chapter.name

    def blocks(self, lines, tight=False):
        out = []
        while lines:
            found = [block for start, _, block in BLOCKS if re.match(start, lines[0])]
            out.append(found[0](self, lines) if found else self.paragraph(lines, tight))
        return "\n".join(filter(None, out))

    def drop(self, lines):
        lines.pop(0)

    def comment(self, lines):
        while lines and "-->" not in lines.pop(0):
            pass

    def fenced(self, lines):
        indent, fence, kind = re.match(r"( *)(```+)(.*)", lines.pop(0)).groups()
        body = []
        while lines and lines[0].strip() != fence:
            body.append(lines.pop(0).removeprefix(indent))
        del lines[:1]
        wide = "wide" if max(map(len, body), default=0) > 100 else ""    # what a program printed
        return code_block("\n".join(body), kind.strip() or wide)

    def indented(self, lines):
        body = []
        while lines and re.match(" {4}|\\s*$", lines[0]):
            body.append(lines.pop(0)[4:])
        return code_block("\n".join(body).rstrip(), "")

    def heading(self, lines):
        marks, text = HEADING.fullmatch(lines.pop(0)).groups()
        anchor = f"{self.chapter.name}-{slug(text, self.taken)}"
        self.headings.append((len(marks), anchor, self.inline(text)))
        return f'<h{len(marks)} id="{anchor}">{self.inline(text)}</h{len(marks)}>'

    def rule(self, lines):
        lines.pop(0)
        return "<hr>"

    def raw(self, lines):
        """<details> and <summary>: GitHub reads no Markdown in their lines."""
        line = lines.pop(0).strip()
        if re.search("[`*$]", line):
            self.chapter.complain(f"{line}: GitHub reads no Markdown in this line")
        return line

    def quotation(self, lines):
        body = []
        while lines and lines[0].startswith(">"):
            body.append(re.sub("^> ?", "", lines.pop(0)))
        return f"<blockquote>\n{self.blocks(body)}\n</blockquote>"

    def listing(self, lines):
        kind = ITEM.match(lines[0])[1]
        items, loose = [], False
        while self.goes_on(lines, kind):
            item = self.item(lines)
            text = "\n".join(item).rstrip()
            loose |= "\n\n" in text or not item[-1] and self.goes_on(lines, kind)
            items.append(text.split("\n"))
        body = "\n".join(f"<li>{self.blocks(item, tight=not loose)}</li>" for item in items)
        if not kind[0].isdigit():
            return f"<ul>\n{body}\n</ul>"
        first = kind[:-1]
        return f"<ol{'' if first == '1' else f' start={first!r}'}>\n{body}\n</ol>"

    def goes_on(self, lines, kind):
        item = lines and ITEM.match(lines[0])
        return bool(item and item[1][-1] == kind[-1])

    def item(self, lines):
        """The lines of a list's item, without indentation: up to a line that is indented less and
        does not go on with a paragraph."""
        width = ITEM.match(lines[0]).end()
        body = [lines.pop(0)[width:]]
        while lines:
            blank = not lines[0].strip()
            inside = lines[0].startswith(" " * width)
            lazy = body[-1] and not interrupts(lines[0]) and not ITEM.match(lines[0])
            if not (blank or inside or lazy):
                break
            line = lines.pop(0)
            body.append(line[width:].rstrip() if inside else line.strip())
        return body

    def mathematics(self, lines):
        text = lines.pop(0)
        while text.count("$$") < 2 and lines:
            text += "\n" + lines.pop(0)
        return f"<p>{self.inline(text.strip())}</p>"

    def paragraph(self, lines, tight):
        if len(lines) > 1 and "|" in lines[0] and SEPARATOR.fullmatch(lines[1]):
            return self.table(lines)
        text = lines.pop(0)
        while lines and lines[0].strip() and not interrupts(lines[0]):
            text += "\n" + lines.pop(0)
        text = text.strip()
        if IMAGE.fullmatch(text):
            return f"<figure>{self.inline(text)}</figure>"
        if CAPTION.fullmatch(text):
            return f'<p class="caption">{self.inline(text[:-1])}</p>'
        return self.inline(text) if tight else f"<p>{self.inline(text)}</p>"

    def table(self, lines):
        def cells(line):
            text = re.sub(r"^\||(?<!\\)\|$", "", line.strip())
            return [c.strip().replace(r"\|", "|") for c in re.split(r"(?<!\\)\|", text)]

        def row(tag, line):
            return "<tr>" + "".join(f"<{tag}{align}>{self.inline(text)}</{tag}>"
                                    for align, text in zip(aligns, cells(line))) + "</tr>"
        sides = {(True, True): "center", (False, True): "right"}
        aligns = [sides.get((c[0] == ":", c[-1] == ":")) for c in cells(lines[1])]
        aligns = [f' style="text-align:{side}"' if side else "" for side in aligns]
        rows = [row("th", lines.pop(0))]
        lines.pop(0)
        while lines and "|" in lines[0]:
            rows.append(row("td", lines.pop(0)))
        return f'<div class="table"><table>\n{chr(10).join(rows)}\n</table></div>'

    # What stands within a line.

    def inline(self, text):
        out, end = "", 0
        for found in INLINE.finditer(text):
            before, span, end = text[end:found.start()], self.span(found), found.end()
            if found.lastgroup == "math":
                opens, closes = OPENS.search(before)[0], CLOSES.match(text, end)[0]
                before, end = before.removesuffix(opens), end + len(closes)
                if opens or closes:
                    span = f'<span class="whole">{opens}{span}{closes}</span>'
            out += html.escape(before, quote=False) + span
        return out + html.escape(text[end:], quote=False)

    def span(self, found):
        kind = found.lastgroup
        if kind == "link":
            return self.picture(found) if found["image"] else self.link(found)
        if kind == "math":
            return self.draw(found["math"])
        if kind == "display":
            return self.display(found["display"])
        if kind == "code":
            return f"<code>{html.escape(found['code'].strip(), quote=False)}</code>"
        if kind == "strong":
            return f"<strong>{self.inline(found['strong'])}</strong>"
        if kind in ("star", "underscore"):
            return f"<em>{self.inline(found[kind])}</em>"
        if kind == "url":
            return '<a href="{0}">{0}</a>'.format(html.escape(found["url"]))
        return found["tag"] or html.escape(found["escaped"] or "")    # neither: a comment

    def draw(self, tex, display=False):
        try:
            return formula(tex, display)
        except ValueError as error:
            self.chapter.complain(f"${tex}$: {error}")
            return ""

    def display(self, tex):
        """A displayed formula; {aligned}, which Matplotlib lacks, is a table of formulas."""
        aligned = re.fullmatch(r"\s*\\begin\{aligned\}(.*)\\end\{aligned\}\s*", tex, re.S)
        if not aligned:
            return f'<span class="display">{self.draw(tex, True)}</span>'
        rows = ""
        for row in filter(str.strip, aligned[1].split(r"\\")):
            parts = (self.draw(part, True) if part.strip() else "" for part in row.split("&"))
            rows += f'<span class="row"><span>{"</span><span>".join(parts)}</span></span>'
        return f'<span class="display"><span class="aligned">{rows}</span></span>'

    def link(self, found):
        """To another chapter: within the page. Other files are seen from the page's folder."""
        file, anchor = self.chapter.target(found["link"])
        if re.match("[a-z]+:", found["link"]):
            found_at = found["link"]
        elif file in self.chapters:
            found_at = "#" + "-".join(filter(None, (self.chapters[file].name, anchor)))
        else:
            found_at = "#".join(filter(None, (os.path.relpath(file, self.folder), anchor)))
        return f'<a href="{html.escape(found_at)}">{self.inline(found["text"])}</a>'

    def picture(self, found):
        """The image itself, so that the page is one file. One that knows nothing of dark pages gets
        a white ground."""
        path, _ = self.chapter.target(found["link"])
        if not os.path.isfile(path):
            return ""    # which was said already
        with open(path, "rb") as file:
            data = file.read()
        light = "" if b"prefers-color-scheme" in data else ' class="light"'
        source = f"data:{mimetypes.guess_type(path)[0]};base64,{base64.b64encode(data).decode()}"
        return f'<img{light} alt="{html.escape(found["text"])}" src="{source}">'


# How a block begins, whether it ends a paragraph before it, and what reads it.
BLOCKS = [
    (r"\s*$", True, Page.drop),
    (r" {0,3}```", True, Page.fenced),
    (r" {4}", False, Page.indented),
    (r" *<!--", True, Page.comment),
    (r" *</?(details|summary)\b", True, Page.raw),
    (r"#{1,6} ", True, Page.heading),
    (r"(-{3,}|\*{3,}|_{3,})\s*$", True, Page.rule),
    (r">", True, Page.quotation),
    (r" {0,3}([-*+]|1[.)]) +\S", True, Page.listing),
    (r" {0,3}\d+[.)] +\S", False, Page.listing),    # a line of prose may begin with "2022. "
    (r" *\$\$", True, Page.mathematics),
]


def interrupts(line):
    return any(ends and re.match(start, line) for start, ends, _ in BLOCKS)
