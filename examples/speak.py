#!/usr/bin/env python3
"""Asks a server of a model that speaks, and writes the answer's sound while it is made: to a WAV file, or as bare samples to a player.

    speak.py "Tell me a story." -o story.wav
    speak.py --url http://10.0.0.1:30000 --voice chelsie "Good morning!" | aplay -f S16_LE -r 24000 -c 1
    speak.py --audio question.wav -o answer.wav
    speak.py --image photo.jpg "What do you see?" -o answer.wav

The text of the answer goes to stderr as it comes. Python's own library alone is needed."""
import argparse
import base64
import contextlib
import json
import mimetypes
import sys
import urllib.error
import urllib.request
import wave

RATE = 24000  # Hz, one channel of 16 bits


def chunks(url, body, key):
    """The choices' deltas of a streamed chat."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps({**body, "stream": True}).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(f"speak.py: {event['error']['message']}")
            yield from (choice["delta"] for choice in event["choices"])


def file_part(kind, path):
    with open(path, "rb") as file:
        data = base64.b64encode(file.read()).decode()
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": path.rsplit(".", 1)[-1].lower()}}
    return {"type": "image_url", "image_url": {"url": f"data:{mimetypes.guess_type(path)[0] or 'image/jpeg'};base64,{data}"}}


@contextlib.contextmanager
def sink(path):
    """What takes samples: a WAV file, or stdout."""
    if path is None:
        yield lambda samples: (sys.stdout.buffer.write(samples), sys.stdout.buffer.flush())
        return
    with wave.open(path, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        yield out.writeframes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", nargs="?", help="what to ask")
    parser.add_argument("--audio", action="append", default=[], metavar="FILE", help="a question that was recorded, or another sound")
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture to ask about")
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--voice", help="default: the first of the model's")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, help="the same text and sound each time")
    parser.add_argument("-o", "--output", help="a WAV file; default: bare samples (16 bits, 24 kHz, mono) to stdout")
    options = parser.parse_args()
    if options.output is None and sys.stdout.isatty():
        parser.error("stdout is a terminal; wanted -o FILE, or a player behind a pipe")
    if not (options.text or options.audio or options.image):
        parser.error("nothing is asked; wanted a text, --audio FILE or --image FILE")
    try:
        parts = [file_part("image", path) for path in options.image] + [file_part("audio", path) for path in options.audio]
    except OSError as error:
        sys.exit(f"speak.py: {error.filename}: {error.strerror}")
    parts += [{"type": "text", "text": options.text}] if options.text else []
    audio = {"format": "pcm16", **({"voice": options.voice} if options.voice else {})}
    body = {"messages": [{"role": "user", "content": parts}], "modalities": ["text", "audio"], "audio": audio,
            "max_tokens": options.max_tokens, **({} if options.seed is None else {"seed": options.seed})}
    try:
        with sink(options.output) as write:
            for delta in chunks(options.url, body, options.api_key):
                print(delta.get("content") or "", end="", file=sys.stderr, flush=True)
                data = (delta.get("audio") or {}).get("data")
                if data:
                    write(base64.b64decode(data))
    except urllib.error.HTTPError as error:
        sys.exit(f"speak.py: {error.code}: {json.load(error)['error']['message']}")
    except urllib.error.URLError as error:
        sys.exit(f"speak.py: {options.url}: {error.reason}")
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
