#!/usr/bin/env python3
"""Draws docs/img/top.svg: a frame of `millrace top` as a terminal of 124 columns shows it, of a server of the demo model that works.

    tools/draw_terminal.py build/release/millrace [docs/img/top.svg]

The server, its load and the terminal are real; the picture is the text of the last of FRAMES frames with its colors. With the standard
library alone."""
import concurrent.futures
import fcntl
import html
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
COLUMNS, ROWS, FRAMES = 124, 24, 40
WIDTH, HEIGHT, MARGIN = 8.43, 19, 16  # of a character cell of 14 px, and around all
COLORS = {"31": "#ff8a80", "32": "#58d68d", "33": "#f2b24f", "34": "#8fb2ff", "35": "#c793ea", "36": "#4cc9c2"}
INK, FAINT, BACK = "#e6ecec", "#8496a0", "#14181b"
CLIENTS = 9


def styled(line):
    """[(text, attributes of SVG)] of a line with SGR sequences; other sequences are left out."""
    out, style = [], ""
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z])", line):
        if part.startswith("\x1b["):
            if part.endswith("m"):
                codes = part[2:-1].split(";")
                style = "" if codes == ["0"] or codes == [""] else " ".join(attribute(code) for code in codes)
        elif part:
            out.append((part, style))
    return out


def attribute(code):
    if code in COLORS:
        return f'fill="{COLORS[code]}"'
    return {"1": 'font-weight="bold"', "2": f'fill="{FAINT}"'}.get(code, "")


def svg(lines):
    width, height = MARGIN * 2 + COLUMNS * WIDTH, MARGIN * 2 + len(lines) * HEIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-size="14" fill="{INK}" '
           'font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace">',
           f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="{BACK}"/>']
    for row, line in enumerate(lines):
        column = 0
        for text, style in styled(line):
            if text.strip():
                # Runs begin where their columns do, whatever the font; blocks have no gaps.
                x, length = MARGIN + column * WIDTH, len(text) * WIDTH
                out.append(f'<text x="{x:.1f}" y="{MARGIN + row * HEIGHT + 14}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve" {style}>{html.escape(text)}</text>')
            column += len(text)
    return "\n".join(out) + "\n</svg>\n"


def frame_of(program, url):
    """The lines of the last of FRAMES frames."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    top = subprocess.Popen([program, "top", "--url", url], stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm-256color"})
    os.close(slave)
    seen = b""
    while seen.count(b"\x1b[J") < FRAMES:
        seen += os.read(master, 65536)
    top.terminate()
    top.wait()
    frame = seen.rsplit(b"\x1b[J", 1)[0].rsplit(b"\x1b[H", 1)[1].decode()
    lines = [line.rstrip("\r") for line in frame.replace("\x1b[K", "").split("\n")]
    while lines and not re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip():
        lines.pop()
    return lines


def client(url, number, ends):
    i = number
    while not ends.is_set():
        text = f"A story for {('Tom', 'Mia', 'Ben')[i % 3]}. " + "Once upon a time there was a little dog with a red ball. " * (1 + i % 4 * 3)
        body = {"text": text, "rid": f"story-{i}", "stream": True, "sampling_params": {"max_new_tokens": 200 + 90 * (i % 6), "ignore_eos": True}}
        request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            answer.read()
        i += CLIENTS


def main():
    program = sys.argv[1]
    out = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "docs/img/top.svg")
    server = subprocess.Popen([program, "serve", "--model", str(ROOT / "models/demo"), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    url = next(match[1] for match in (re.search(r"Chat in a browser: (http://\S+?)/$", line.strip()) for line in server.stdout) if match)
    ends = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for number in range(CLIENTS):
            pool.submit(client, url, number, ends)
        try:
            out.write_text(svg(frame_of(program, url)))
        finally:
            ends.set()
    server.terminate()
    server.wait()


if __name__ == "__main__":
    main()
