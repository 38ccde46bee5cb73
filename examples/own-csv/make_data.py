"""Write `kiosks.csv`, the sales of 24 kiosks in three towns, and `tomorrow.csv`, days whose sales are to be predicted."""

import csv
import random

luck = random.Random(0)
DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
TOWNS = {"beach": (6, 40), "campus": (1, -60), "ski": (-5, 50)}  # drinks more for each degree, and at the weekend


def sold(town, kiosk, day, degrees, rain):
    """Drinks sold on a day: the kiosks of a town have much in common, and each differs a little."""
    own = random.Random(kiosk)
    degree, weekend = TOWNS[town]
    usual, degree = own.gauss(200, 30), degree + own.gauss(0, 1.5)
    expected = usual + degree * (degrees - 12) + weekend * (day in ("Sat", "Sun")) - 30 * (rain == "yes")
    return max(0, round(expected + luck.gauss(0, 25)))


def a_day(town, kiosk):
    """One row without the sales."""
    return [town, kiosk, luck.choice(DAYS), round(luck.gauss(12, 7), 1), luck.choice(["no", "no", "yes"])]


def write(file, head, rows):
    """Write a table."""
    with open(file, "w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([head, *rows])


head = ["town", "kiosk", "day", "degrees", "rain"]
kiosks = [(town, f"{town}-{number}") for town in TOWNS for number in range(1, 9)]
days = [a_day(*kiosk) for kiosk in kiosks for _ in range(24)]
write("kiosks.csv", [*head, "sold"], [[*day, sold(*day)] for day in days])
write("tomorrow.csv", head, [a_day(*kiosk) for kiosk in [*kiosks, ("ski", "ski-9")]])  # the last one has just opened
