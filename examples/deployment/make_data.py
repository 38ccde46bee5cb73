"""Write a CSV file for each of four kiosks into `samples`, and `example.csv`, which shows everybody what the files are like."""

import csv
import random
from pathlib import Path

luck = random.Random(0)
DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
DEGREE = {"beach-1": 7, "beach-2": 5, "ski-1": -4, "ski-2": -6}  # drinks sold more for each degree


def write(file, rows):
    """Write a table."""
    with open(file, "w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(rows)


def a_day(day=None):
    """The weekday, the temperature and rain."""
    return [day or luck.choice(DAYS), round(luck.gauss(12, 7), 1), luck.choice(["no", "no", "yes"])]


def sold(kiosk, day, degrees, rain):
    """Drinks sold on a day."""
    expected = 200 + DEGREE[kiosk] * (degrees - 12) + 40 * (day in ("Sat", "Sun")) - 30 * (rain == "yes")
    return round(expected + luck.gauss(0, 25))


Path("samples").mkdir(exist_ok=True)
for kiosk in DEGREE:
    days = [a_day() for _ in range(40)]
    write(f"samples/{kiosk}.csv", [["day", "degrees", "rain", "sold"], *([*day, sold(kiosk, *day)] for day in days)])

# Nobody's data: every category once, and amounts as they may occur. Columns and scaling are taken from it.
made_up = [["anybody", *a_day(day), luck.randint(50, 350)] for day in DAYS * 4]
write("example.csv", [["kiosk", "day", "degrees", "rain", "sold"], *made_up])
