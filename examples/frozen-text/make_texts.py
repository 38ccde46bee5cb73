"""Make up `messages.csv`, what 24 people at three desks call urgent, and `corpus.txt`, messages about which nobody said so."""

import csv
import random

TOPICS = {
    "billing": "invoice refund charge receipt payment price discount fee balance credit transfer tax bank card bill money",
    "login": "password account email username code reset profile locked verify access token phone identity sign key login",
    "delivery": "parcel courier address late tracking box shipped driver door lost street arrived warehouse customs van stamp",
    "crashes": "crash error screen freeze bug update install version slow restart battery loading broken black device app",
}
FILLER = "please hello the my is with about again today since help can you it and not"
luck = random.Random(0)


def message(topic):
    """Write a message: two words of its topic among others, often with one of another topic."""
    words = luck.sample(TOPICS[topic].split(), 2) + luck.sample(FILLER.split(), 5)
    if luck.random() < 0.6:
        words.append(luck.choice(TOPICS[luck.choice(list(TOPICS))].split()))
    return " ".join(luck.sample(words, len(words)))


with open("corpus.txt", "w", encoding="utf-8") as out:
    out.writelines(message(luck.choice(list(TOPICS))) + "\n" for _ in range(3000))

with open("messages.csv", "w", newline="", encoding="utf-8") as out:
    table = csv.writer(out)
    table.writerow(["desk", "person", "text", "urgent"])
    for desk, first in {"accounts": "billing", "security": "login", "shipping": "delivery"}.items():
        for person in (f"{desk}-{number}" for number in range(1, 9)):
            second = luck.choice([*TOPICS, *[first] * 4])  # what is urgent to this person besides, if anything
            for topic in luck.choices(list(TOPICS), k=12):
                table.writerow([desk, person, message(topic), "yes" if topic in (first, second) else "no"])
