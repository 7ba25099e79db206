#!/usr/bin/env python3
"""Draws docs/img/ratios.svg, decode-roofline.svg and decode-curves.svg from what bench/compare.py left in bench/results/MACHINE, and writes
the tables of docs/performance.md that stand between `<!-- bench/draw.py: MACHINE SHAPE -->` and `<!-- end -->`. The pictures of machines
but the first bear the machine's name: ratios-MACHINE.svg.

    bench/draw.py           writes them
    bench/draw.py --check   fails where a picture or a table is not that of bench/results

A file named later in the alphabet wins where two of a machine hold the same measure of the same model. bench/goals.json: the ratio
wanted of each measure, for all formats or by format."""
import json
import math
import pathlib
import re
import sys

from engines import FIRST, READY
from svg import FAINT, INK, Picture

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS, IMAGES, PAGE, GOALS = ROOT / "bench/results", ROOT / "docs/img", ROOT / "docs/performance.md", ROOT / "bench/goals.json"
FIRST_MACHINE = "xeon-amx"
WIDTH = 900
FORMATS = {"f32": "#334155", "bf16": "#1d4ed8", "f16": "#0e9f8e", "q8_0": "#d97706", "q4_0": "#be185d"}
ENGINES = {"millrace": "#1d4ed8", "llama.cpp": "#64748b", "node-llama-cpp": "#d97706"}
MEASURES = {"prefill-512": ("prefill 512", "prefill of 512 tokens"), "prefill-2048": ("prefill 2048", "prefill of 2048 tokens"),
            "prefill-8192": ("prefill 8192", "prefill of 8192 tokens"),
            "decode-1": ("decode", "decode, one sequence"), "decode-1-at-2048": ("at depth 2048", "decode, one sequence at depth 2048"),
            "decode-16": ("16 decoding", "16 clients decoding"), "serve-16": ("16 clients", "16 clients, 64 in, 64 out"),
            "serve-shared": ("shared prefixes", "4 groups of 16 requests, 1024 tokens shared")}


def load(machine):
    """{(shape, format, measure, figure): row}, each row with the file's facts that it needs."""
    rows = {}
    for path in sorted((RESULTS / machine).glob("*.json")):
        run = json.loads(path.read_text())
        for row in run["rows"]:
            shape, form = row["model"].rsplit(" ", 1)
            rows[(shape, form, row["measure"], row["figure"])] = {**row, "run": run, "read": run["models"][row["model"]]}
    return rows


def short(value):
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def in_order(found, order):
    return [one for one in order if one in found] + sorted(one for one in set(found) if one not in order)


def shapes_of(rows):
    return list(dict.fromkeys(shape for shape, *_ in sorted(rows, key=lambda key: (-rows[key]["read"]["weight_bytes_a_token"], key))))


def rate(rows, shape, form, measure):
    """The row of a measure's tokens or requests a second."""
    return next((rows[key] for key in rows if key[:3] == (shape, form, measure) and key[3] not in (FIRST, READY)), None)


def alone(row):
    return len(row["values"]) < len(ENGINES)


def goal_of(measure, form):
    goals = json.loads(GOALS.read_text()) if GOALS.exists() else {}
    goal = goals.get(measure)
    return goal.get(form) if isinstance(goal, dict) else goal


def ratios(rows):
    picture = Picture(WIDTH, "Times as fast as the faster peer",
                      "Same GGUF files, engines taking turns. Bars begin at 1, as fast as the faster of the peers; the axis is logarithmic.")
    ratio_rows = {key: row for key, row in rows.items() if "ratio" in row and key[3] not in (FIRST, READY) and key[2] in MEASURES}
    picture.legend([(form, FORMATS[form]) for form in in_order({key[1] for key in ratio_rows}, FORMATS) if form in FORMATS])
    values = [row["ratio"] for row in ratio_rows.values()]
    high, low = math.ceil(math.log2(max(values)) + 0.2), 0 if min(values) >= 1 else math.floor(math.log2(min(values)) - 0.2)
    top, left, height = picture.top + 12, 50, 62 * (high - low)
    for shape in shapes_of(ratio_rows):
        mine = [key for key in ratio_rows if key[0] == shape]

        def y_of(ratio, top=top):
            return top + (high - math.log2(ratio)) * 62
        picture.text(20, top - 14, shape, size=14, bold=True)
        for power in range(low, high + 1):
            picture.line(left, y_of(2 ** power), WIDTH - 20, y_of(2 ** power))
            picture.text(left - 8, y_of(2 ** power) + 4, f"{2 ** power:g}", anchor="end", fill=FAINT)
        measures = in_order({key[2] for key in mine}, list(MEASURES))
        group = (WIDTH - 20 - left) / len(measures)
        for number, measure in enumerate(measures):
            forms = in_order({key[1] for key in mine if key[2] == measure}, FORMATS)
            step = min(36, (group - 12) / len(forms))
            start = left + (number + 0.5) * group - step * len(forms) / 2
            for place, form in enumerate(forms):
                ratio, x = rate(ratio_rows, shape, form, measure)["ratio"], start + place * step
                picture.rect(x + 2, min(y_of(ratio), y_of(1)), step - 4, max(abs(y_of(ratio) - y_of(1)), 1), FORMATS[form])
                if (goal := goal_of(measure, form)) is not None:
                    picture.line(x - 1, y_of(goal), x + step + 1, y_of(goal), stroke=INK, width=2, dashes="4 2")
                y = y_of(ratio) + (-4 if ratio >= 1 else 14)
                picture.rect(x + 1, y - 10, step - 2, 12, "#ffffff")
                told = (short(ratio) if ratio < 2 else f"{ratio:.1f}") + ("*" if alone(rate(ratio_rows, shape, form, measure)) else "")
                picture.text(x + step / 2, y, told, size=11, anchor="middle")
            picture.text(left + (number + 0.5) * group, top + height + 20, MEASURES[measure][0], anchor="middle")
        picture.line(left, y_of(1), WIDTH - 20, y_of(1), stroke=INK, width=1.5)
        top += height + 70
    notes = (["dashed: what this project wants of itself"] if GOALS.exists() else []) + (["* beside one peer"] if any(map(alone, ratio_rows.values())) else [])
    picture.text(WIDTH - 20, 74, "; ".join(notes), anchor="end", fill=FAINT)
    return picture.document(top - 30)


def roofline(rows):
    picture = Picture(WIDTH, "Decode of one sequence against the memory's speed",
                      "Bytes that a token must read (weights, and f16 keys and values), times tokens a second, over the read speed",
                      "that was measured beside it. A small model, part of which stays in the caches, can pass it.")
    picture.legend(ENGINES.items())
    top, left, right = picture.top, 235, WIDTH - 150
    groups = [(shape, form, measure) for measure in ("decode-1", "decode-1-at-2048") for shape in shapes_of(rows) for form in FORMATS
              if rate(rows, shape, form, measure) and rate(rows, shape, form, measure)["run"].get("read_bytes_per_s")]
    shares = {}
    for group in groups:
        row = rate(rows, *group)
        need = row["read"]["weight_bytes_a_token"] + (2048 + 16 if group[2] != "decode-1" else 0) * row["read"]["kv_bytes_a_position"]
        shares[group] = {who: (value * need / row["run"]["read_bytes_per_s"], value) for who, value in row["values"].items()}
    most = min(1.4, max(1.0, *(share for one in shares.values() for share, _ in one.values())))  # the figures tell what is cut off
    y = top
    for shape, form, measure in groups:
        picture.text(20, y + 22, f"{shape} {form}" + (", depth 2048" if measure != "decode-1" else ""))
        for who, color in ENGINES.items():
            if who in shares[(shape, form, measure)]:
                share, value = shares[(shape, form, measure)][who]
                picture.rect(left, y + 1, min(share, most) / most * (right - left), 13, color)
                picture.text(right + 52, y + 12, f"{100 * share:.0f} %", size=12, anchor="end")
                picture.text(WIDTH - 20, y + 12, f"{short(value)} tok/s", size=12, anchor="end")
            y += 15
        y += 10
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = left + share / most * (right - left)
        picture.body.insert(0, f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{y:.1f}" stroke="{INK if share == 1 else "#e2e8f0"}"/>')
        picture.text(x, y + 16, f"{100 * share:.0f} %", anchor="middle", fill=FAINT)
    return picture.document(y + 32)


def round_up(value):
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def panel(picture, x, y, title, x_name, series, scale):
    """Axes with a curve for each engine; `scale` spaces the values along x."""
    width, height = 350, 190
    marks = sorted({at for points in series.values() for at, _ in points})
    high = round_up(max(value for points in series.values() for _, value in points))
    picture.text(x, y - 10, title, size=14, bold=True)
    for i in range(5):
        at = y + height - i * height / 4
        picture.line(x, at, x + width, at)
        picture.text(x - 8, at + 4, f"{high * i / 4:g}", anchor="end", fill=FAINT)
    place = {mark: x + 14 + (width - 28) * (scale(mark) - scale(marks[0])) / (scale(marks[-1]) - scale(marks[0])) for mark in marks}
    for mark, at in place.items():
        picture.text(at, y + height + 18, f"{mark}", anchor="middle", fill=FAINT)
    picture.text(x + width / 2, y + height + 36, x_name, anchor="middle", fill=FAINT)
    for who, points in series.items():
        picture.curve([(place[at], y + height - value / high * height) for at, value in sorted(points)], ENGINES[who])


def curves(rows):
    picture = Picture(WIDTH, "Decode: more sequences together, and longer ones",
                      "Tokens a second. Left: clients that ask at the same time (over HTTP; node-llama-cpp in its own process). Right: one sequence.")
    picture.legend(ENGINES.items())
    kinds = (("clients", lambda name: re.fullmatch(r"decode-(\d+)", name), math.log2),
             ("tokens in the cache before", lambda name: re.fullmatch(r"decode-1(?:-at-(\d+))?", name), float))
    y = picture.top + 14
    for shape in shapes_of(rows):
        for form in FORMATS:
            drawn = 0
            for column, (x_name, match, scale) in enumerate(kinds):
                series = {}
                for measure in {key[2] for key in rows if key[:2] == (shape, form)}:
                    if found := match(measure):
                        for who, value in rate(rows, shape, form, measure)["values"].items():
                            series.setdefault(who, []).append((int(found[1] or 0), value))
                series = {who: series[who] for who in ENGINES if len(series.get(who, [])) >= 3}
                if series:
                    panel(picture, 70 + column * 440, y, f"{shape} {form}", x_name, series, scale)
                    drawn += 1
            y += 280 if drawn else 0
    return picture.document(y - 25)


def table(rows, shape):
    forms = in_order({key[1] for key in rows if key[0] == shape}, FORMATS)
    who = [name for name in ENGINES if any(name in row["values"] for key, row in rows.items() if key[0] == shape)]
    lines = [f"| {', '.join([*who, '**ratio**'])} | {' | '.join(forms)} |", f"|---|{'---|' * len(forms)}"]
    for measure, (_, words) in MEASURES.items():
        for figure in in_order({key[3] for key in rows if key[0] == shape and key[2] == measure} - {READY}, ["tokens/s", "requests/s"]):
            cells = []
            for form in forms:
                row = rows.get((shape, form, measure, figure))
                cells.append("" if row is None else ", ".join([*(short(row["values"][one]) if one in row["values"] else "-" for one in who), f"**{row['ratio']:.2f}**"]))
            lines.append(f"| {'the same' if figure == FIRST else words}, {figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(machines):
    def fill(found):
        return f"{found[1]}\n\n{table(machines[found[2]], found[3])}\n\n{found[4]}"
    return re.sub(r"(<!-- bench/draw\.py: (\S+) (.*?) -->)\n.*?(<!-- end -->)", fill, PAGE.read_text(), flags=re.S)


def main():
    machines = {folder.name: load(folder.name) for folder in sorted(RESULTS.iterdir())}
    rows = machines[FIRST_MACHINE]
    files = {IMAGES / "ratios.svg": ratios(rows), IMAGES / "decode-roofline.svg": roofline(rows), IMAGES / "decode-curves.svg": curves(rows), PAGE: page(machines)}
    files |= {IMAGES / f"ratios-{name}.svg": ratios(found) for name, found in machines.items() if name != FIRST_MACHINE}
    failed = 0
    for path, text in files.items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} is not that of bench/results; wanted: run bench/draw.py", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
