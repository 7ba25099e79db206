#!/usr/bin/env python3
"""Fails when a paragraph or a list item of a Markdown file holds a line of more than 120 columns.

    tools/check_markdown.py                 every Markdown file of the repository
    tools/check_markdown.py FILE...         these
    tools/check_markdown.py --wrap FILE...  wraps the paragraphs and list items with such a line, and leaves all else

Free of the limit: tables, code, headings, HTML, link references, front matter, what a generator writes between
`<!-- PROGRAM: NAME -->` and `<!-- end -->`, and a line that is one code span, link or word.
A wrapped file renders as before: code spans and links stay in one line, paragraphs with hard breaks are not wrapped,
and no line begins with what Markdown would read as the start of a list, a heading, a quotation, a table or HTML."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 120
FENCE = re.compile(r"^\s*(```+|~~~+)")
LIST_ITEM = re.compile(r"^(\s*)([-+*]|\d{1,9}[.)])(\s+)(?=\S)")
QUOTE = re.compile(r"^\s{0,3}(?:>\s?)+")
NOT_PROSE = re.compile(r"""^\s*(?:
    \#{1,6}(?:\s|$) | \| | <(?=[A-Za-z/!?]) | \[[^\]]+\]:\s       # a heading, a table, HTML, a link reference
    | (?:-\s*){3,}$ | (?:\*\s*){3,}$ | (?:_\s*){3,}$ | =+$ | -+$  # a rule, the underline of a heading
    )""", re.X)
BEGINS_A_BLOCK = re.compile(r"^(?:[-+*]|-+|=+|#{1,6}|\d{1,9}[.)]|>.*|\|.*|<.*|```.*|~~~.*|\[[^\]]+\]:)$")
LINK = re.compile(r"!?\[(?:[^\[\]`]|`[^`]*`|\[[^\]]*\])*\]\([^()\s]*(?:\s\"[^\"]*\")?\)")
GENERATED, GENERATED_END = re.compile(r"^<!-- [\w/.]+: .* -->$"), "<!-- end -->"


def atoms(text):
    """The text cut at the spaces where a line may end."""
    found, word, at = [], "", 0
    while at < len(text):
        run = re.match(r"`+", text[at:])
        span = re.compile(rf"(?<!`){run[0]}(?!`)").search(text, at + len(run[0])) if run else None
        link = LINK.match(text, at)
        if run:
            end = span.end() if span else at + len(run[0])
        elif link:
            end = link.end()
        elif text[at].isspace():
            found, word, at = found + [word], "", at + 1
            continue
        else:
            end = at + 1
        word, at = word + text[at:end], end
    glued = []
    for word in filter(None, found + [word]):
        if glued and BEGINS_A_BLOCK.match(word):
            glued[-1] += " " + word
        else:
            glued.append(word)
    return glued


class Paragraph:
    """Lines [begin, end) of a file, with what stands before the text of the first line and of the others."""

    def __init__(self, begin, first, others):
        self.begin, self.end, self.first, self.others = begin, begin + 1, first, others

    def wrapped(self, lines):
        own = lines[self.begin:self.end]
        if any(line.endswith(("  ", "\\")) for line in own[:-1]):
            return own
        texts = [own[0][len(self.first):]] + [QUOTE.sub("", line) if self.others.startswith(">") else line for line in own[1:]]
        out, prefix = [], self.first
        line = prefix
        for word in atoms(" ".join(text.strip() for text in texts)):
            if line != prefix and len(line) + 1 + len(word) > COLUMNS:
                out, prefix = out + [line], self.others
                line = prefix
            line += (" " if line != prefix else "") + word
        return out + [line]

    def faults(self, lines):
        """The numbers of the lines that are too long and need not be."""
        needed = {line.strip() for line in self.wrapped(lines) if len(line) > COLUMNS}
        return [at for at in range(self.begin, self.end) if len(lines[at]) > COLUMNS and lines[at].strip() not in needed]


def paragraphs(lines):
    found, current, fence, generated, item_indent, after_blank = [], None, None, False, 0, True
    start = 0
    if lines and lines[0] == "---" and "---" in lines[1:]:
        start = lines.index("---", 1) + 1
    for at in range(start, len(lines)):
        line = lines[at]
        mark = FENCE.match(line)
        if fence or mark:
            if not fence:
                fence = mark[1]
            elif line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
            current = None
            continue
        generated = (generated or bool(GENERATED.match(line))) and line != GENERATED_END
        quote = QUOTE.match(line)
        if not line.strip() or generated or NOT_PROSE.match(line) or (quote and not line[quote.end():].strip()):
            current, after_blank = None, not line.strip()
            continue
        indent = len(line) - len(line.lstrip())
        item = LIST_ITEM.match(line)
        if after_blank and indent < item_indent:
            item_indent = 0
        if after_blank and indent >= item_indent + 4:
            continue  # indented code, and so is the next line if it is indented as far
        if item:
            item_indent = item.end()
            current = Paragraph(at, item[0], " " * item.end())
            found.append(current)
        elif current:
            current.end = at + 1
        else:
            prefix = quote[0] if quote else " " * indent
            current = Paragraph(at, prefix, prefix)
            found.append(current)
        after_blank = False
    return found


def wrap(path):
    lines = path.read_text().split("\n")
    for paragraph in reversed(paragraphs(lines)):
        if any(len(line) > COLUMNS for line in lines[paragraph.begin:paragraph.end]):
            lines[paragraph.begin:paragraph.end] = paragraph.wrapped(lines)
    path.write_text("\n".join(lines))


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    arguments = [argument for argument in sys.argv[1:] if argument != "--wrap"]
    files = [pathlib.Path(argument) for argument in arguments]
    if not files:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True, text=True, check=True)
        files = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    if "--wrap" in sys.argv[1:]:
        for path in files:
            wrap(path)
    faults = []
    for path in files:
        lines = path.read_text().split("\n")
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        for paragraph in paragraphs(lines):
            faults += [f"{name}:{at + 1}: {len(lines[at])} columns; wanted at most {COLUMNS}" for at in paragraph.faults(lines)]
    if faults:
        print("\n".join(faults) + "\ntools/check_markdown.py --wrap FILE wraps them", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
