#!/usr/bin/env python3
"""Draws docs/img/architecture.svg from the code: the levels of src/LAYERS, and which folder includes which.

    tools/draw_architecture.py           writes the picture
    tools/draw_architecture.py --check   fails when the picture lacks a folder or a line of today's code

A line is the thicker the more files include that way. The check leaves thickness out: one more include in a folder
that includes another one already is no reason to draw again.
"""
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
OUT = ROOT / "docs" / "img" / "architecture.svg"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z]+)/', re.M)

WIDTH, MARGIN, BOX_HEIGHT, ROW_GAP, BOX_GAP, LABEL = 1080, 24, 64, 46, 14, 34
COLORS = ["#eef2f7", "#e3edf7", "#dcefe4", "#fdf1d8", "#fbe6d4", "#f8dfe0", "#eee3f5", "#e2e5f6", "#dfe9ea"]


def read_layers():
    rows = {}
    for line in (SRC / "LAYERS").read_text().splitlines():
        if line and not line.startswith("#"):
            level, folder, holds = line.split(None, 2)
            rows.setdefault(int(level), []).append((folder, holds))
    return rows


def read_edges(folders):
    edges = {}
    for path in sorted(SRC.rglob("*.h")) + sorted(SRC.rglob("*.cc")):
        if path.name.endswith("_test.cc"):
            continue
        source = path.relative_to(SRC).parts[0]
        for target in INCLUDE.findall(path.read_text()):
            if source in folders and target in folders and target not in (source, "base"):
                edges[(source, target)] = edges.get((source, target), 0) + 1
    return edges


def wrap(text, width):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return (lines + [line])[:3]


def draw():
    rows = read_layers()
    top = max(rows)
    height = MARGIN * 2 + (top + 1) * BOX_HEIGHT + top * ROW_GAP + 26
    boxes, body = {}, []
    for level, folders in rows.items():
        y = MARGIN + 26 + (top - level) * (BOX_HEIGHT + ROW_GAP)
        usable = WIDTH - 2 * MARGIN - LABEL
        width = min(330, (usable - BOX_GAP * (len(folders) - 1)) / len(folders))
        start = MARGIN + LABEL + (usable - width * len(folders) - BOX_GAP * (len(folders) - 1)) / 2
        for index, (folder, holds) in enumerate(folders):
            boxes[folder] = (start + index * (width + BOX_GAP), y, width, holds, level)
    edges = read_edges(boxes)
    for (source, target), count in sorted(edges.items()):
        x1, y1, w1, _, _ = boxes[source]
        x2, y2, w2, _, _ = boxes[target]
        a, b = x1 + w1 / 2, x2 + w2 / 2
        middle = (y1 + BOX_HEIGHT + y2) / 2
        body.append(
            f'<path d="M{a:.0f} {y1 + BOX_HEIGHT} C{a:.0f} {middle:.0f} {b:.0f} {middle:.0f} {b:.0f} {y2}" fill="none" '
            f'stroke="#5b6b82" stroke-opacity="0.35" stroke-width="{min(4, 0.8 + count / 6):.1f}"/>')
    for folder, (x, y, width, holds, level) in boxes.items():
        body.append(f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="7" fill="{COLORS[level % len(COLORS)]}" stroke="#5b6b82"/>')
        body.append(f'<text x="{x + width / 2:.0f}" y="{y + 17}" text-anchor="middle" font-weight="bold" font-size="14">{folder}/</text>')
        for number, line in enumerate(wrap(holds, int(width / 5.6))):
            body.append(f'<text x="{x + width / 2:.0f}" y="{y + 32 + 12 * number}" text-anchor="middle" font-size="10.5" fill="#333">{html.escape(line)}</text>')
    for level in rows:
        y = MARGIN + 26 + (top - level) * (BOX_HEIGHT + ROW_GAP)
        body.append(f'<text x="{MARGIN}" y="{y + BOX_HEIGHT / 2 + 5:.0f}" font-size="15" fill="#5b6b82">{level}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="Helvetica, Arial, sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="13" fill="#5b6b82">The folders of src/ by level; a line means that the upper folder includes the lower one. All of them include base/.</text>\n'
        + "\n".join(body) + "\n</svg>\n")


def shape(picture):
    return re.sub(r'stroke-width="[0-9.]+"', "", picture)


def main():
    picture = draw()
    if "--check" in sys.argv:
        if not OUT.exists() or shape(OUT.read_text()) != shape(picture):
            print(f"{OUT} is not today's; wanted: run tools/draw_architecture.py", file=sys.stderr)
            return 1
        return 0
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
