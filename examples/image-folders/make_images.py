"""Draw the folder `cameras`: a folder for each of 12 cameras above three belts, with images of good and of wrong parts."""

import csv
import math
import random
from pathlib import Path

from PIL import Image, ImageDraw

SIDE, EACH = 12, 16  # pixels of a side; images of each class
CORNERS = {"discs": 30, "squares": 4, "triangles": 3}  # what each belt makes: other parts on it are wrong
luck = random.Random(0)


def draw(corners, paper, ink):
    """Draw one part, turned at random."""
    image = Image.new("RGB", (SIDE, SIDE), paper)
    x, y, r, turn = luck.uniform(5, 6), luck.uniform(5, 6), luck.uniform(4, 5.5), luck.uniform(0, 2 * math.pi)
    angles = [turn + 2 * math.pi * corner / corners for corner in range(corners)]
    ImageDraw.Draw(image).polygon([(x + r * math.cos(a), y + r * math.sin(a)) for a in angles], fill=ink)
    return image


teams = [("device", "team")]
for belt in CORNERS:
    for camera in (f"{belt}-{number}" for number in range(1, 5)):
        paper, ink = [tuple(luck.randint(low, low + 80) for _ in "rgb") for low in (20, 150)]  # this camera's light
        others = [other for other in CORNERS if other != belt]
        for kind in ("good", "wrong"):
            folder = Path("cameras", camera, kind)
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(EACH):
                part = belt if kind == "good" else others[number % 2]
                draw(CORNERS[part], paper, ink).save(folder / f"{number}.png")
        teams.append((camera, belt))
with open("cameras/teams.csv", "w", newline="", encoding="utf-8") as out:
    csv.writer(out).writerows(teams)
