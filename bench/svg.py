"""Just enough SVG for bench/draw.py: a white card (so that it reads the same on a light and on a dark page), plain text and shapes."""
import html

INK, FAINT, GRID = "#1e293b", "#475569", "#e2e8f0"


class Picture:
    def __init__(self, width, title, *subtitles):
        self.width, self.body = width, []
        self.text(20, 28, title, size=17, bold=True)
        for number, line in enumerate(subtitles):
            self.text(20, 48 + 18 * number, line, fill=FAINT)
        self.top = 56 + 18 * len(subtitles)

    def text(self, x, y, what, size=13, anchor="start", fill=INK, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.body.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{html.escape(what)}</text>')

    def rect(self, x, y, width, height, fill):
        self.body.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>')

    def line(self, x1, y1, x2, y2, stroke=GRID, width=1, dashes=""):
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.body.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"{dashed}/>')

    def curve(self, points, stroke):
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.body.append(f'<polyline points="{way}" fill="none" stroke="{stroke}" stroke-width="2.2"/>')
        self.body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{stroke}"/>' for x, y in points]

    def legend(self, entries):
        x, y = 20, self.top
        self.top += 36
        for name, color in entries:
            self.rect(x, y - 11, 13, 13, color)
            self.text(x + 18, y, name)
            x += 40 + 7.4 * len(name)

    def document(self, height):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height:.0f}" font-family="Helvetica, Arial, sans-serif">\n'
                f'<rect width="{self.width}" height="{height:.0f}" rx="8" fill="#ffffff"/>\n' + "\n".join(self.body) + "\n</svg>\n")
