"""Draws the pictures that the demo of pictures learns from: one shape of one colour and one digit, on a plain background.

A picture is a function of its seed. It is drawn at four times its size and reduced, so its edges are smooth.
    python vl_pictures.py --out DIR --count 6 --seed 7     writes some as PNG files, not reduced, with what is on them in pictures.json
"""

import argparse
import functools
import json
import math
import os
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SHAPES = ["circle", "square", "triangle", "star", "cross"]
COLOURS = {"red": (214, 40, 40), "orange": (245, 140, 20), "yellow": (245, 220, 40), "green": (40, 160, 70),
           "blue": (40, 90, 220), "purple": (140, 60, 180)}
BACKGROUNDS = {"white": (255, 255, 255), "grey": (170, 170, 170), "black": (0, 0, 0)}
FONTS = ["DejaVuSans.ttf", "DejaVuSans-Bold.ttf"]
FONT_FOLDER = "/usr/share/fonts/truetype/dejavu"
SIZES = [(96, 96)] * 6 + [(96, 128), (128, 96)]  # height, width
SCALE = 4


def points_of(shape, r):
    """Corners of the shape around the origin; r is half of its extent."""
    if shape == "square":
        return [(-.85 * r, -.85 * r), (.85 * r, -.85 * r), (.85 * r, .85 * r), (-.85 * r, .85 * r)]
    if shape == "triangle":
        return [(0, -.95 * r), (r, .8 * r), (-r, .8 * r)]
    if shape == "star":
        corner = [(r if k % 2 == 0 else .42 * r, math.pi * (k / 5 - .5)) for k in range(10)]
        return [(length * math.cos(a), length * math.sin(a)) for length, a in corner]
    w = .32 * r  # cross
    return [(-w, -r), (w, -r), (w, -w), (r, -w), (r, w), (w, w), (w, r), (-w, r), (-w, w), (-r, w), (-r, -w), (-w, -w)]


def turned(points, angle, x, y):
    c, s = math.cos(angle), math.sin(angle)
    return [(x + c * px - s * py, y + s * px + c * py) for px, py in points]


def layout(draw, height, width):
    """Centres and half extents of shape and digit: apart from each other, and clearly beside or above one another."""
    while True:
        rs, rd = draw.uniform(16, 22), draw.uniform(17, 22)
        (xs, ys), (xd, yd) = [(draw.uniform(r + 2, width - r - 2), draw.uniform(r + 2, height - r - 2)) for r in (rs, rd)]
        dx, dy = xd - xs, yd - ys
        if max(abs(dx), abs(dy)) > (rs + rd) * 1.02 and max(abs(dx), abs(dy)) > 1.4 * min(abs(dx), abs(dy)):
            return (xs, ys, rs), (xd, yd, rd)


def near(draw, colour, spread=14):
    return tuple(max(0, min(255, c + draw.randint(-spread, spread))) for c in colour)


@functools.lru_cache(None)
def font_of(name, size):
    return ImageFont.truetype(os.path.join(FONT_FOLDER, name), size)


def large(seed, size=None):
    """The picture at SCALE times its size, and what is on it."""
    draw = random.Random(seed)
    height, width = size or draw.choice(SIZES)
    facts = dict(shape=draw.choice(SHAPES), colour=draw.choice(list(COLOURS)), digit=draw.randint(0, 9),
                 background=draw.choice(list(BACKGROUNDS)))
    (xs, ys, rs), (xd, yd, rd) = layout(draw, height, width)
    dx, dy = xd - xs, yd - ys
    facts["at"] = dict(shape=(xs, ys, rs), digit=(xd, yd, rd))
    facts["where"] = ("right" if dx > 0 else "left") if abs(dx) > abs(dy) else ("below" if dy > 0 else "above")
    ground = near(draw, BACKGROUNDS[facts["background"]], 10)
    image = Image.new("RGB", (width * SCALE, height * SCALE), ground)
    pen = ImageDraw.Draw(image)
    fill = near(draw, COLOURS[facts["colour"]])
    x, y, r = xs * SCALE, ys * SCALE, rs * SCALE
    if facts["shape"] == "circle":
        pen.ellipse((x - .95 * r, y - .95 * r, x + .95 * r, y + .95 * r), fill=fill)
    else:
        pen.polygon(turned(points_of(facts["shape"], r), draw.uniform(-.18, .18), x, y), fill=fill)
    ink = near(draw, (245, 245, 245) if facts["background"] == "black" else (15, 15, 15), 10)
    font = font_of(draw.choice(FONTS), int(2.3 * rd * SCALE))
    pen.text((xd * SCALE, yd * SCALE), str(facts["digit"]), fill=ink, font=font, anchor="mm")
    return image, facts


def picture(seed, size=None):
    """The picture as uint8 [height, width, 3], and what is on it."""
    image, facts = large(seed, size)
    return np.asarray(image.reduce(SCALE)), facts


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out", required=True)
    a.add_argument("--count", type=int, default=6)
    a.add_argument("--seed", type=int, default=7)
    a = a.parse_args()
    os.makedirs(a.out, exist_ok=True)
    contents = {}
    for i in range(a.count):
        image, facts = large(a.seed + i)
        name = "{colour}-{shape}-{digit}.png".format(**facts)
        image.save(os.path.join(a.out, name), optimize=True)
        contents[name] = {key: value for key, value in facts.items() if key != "at"}
    with open(os.path.join(a.out, "pictures.json"), "w") as f:
        json.dump(contents, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
