"""Write hospitals.csv: 6000 synthetic stays in six hospitals, 1 in 10 with a complication. Needs numpy only.

    python examples/hospitals.py [PATH]

Hospitals differ in size (45 % to 3 % of the stays), in the age of their patients, in how often a complication occurs, in the
calibration of a laboratory value and in how often it is missing. The risk depends on age, lactate, blood pressure, ward and
smoking in the same way everywhere, apart from the base rate.
"""

from __future__ import annotations

import csv
import sys

import numpy as np

HOSPITALS = {  # share of stays, mean age, base rate (log odds), offset of lactate, share of missing lactate values
    "university": (0.45, 61, -3.2, 0.0, 0.05),
    "city": (0.22, 58, -3.4, 0.4, 0.10),
    "north": (0.15, 66, -2.6, -0.2, 0.02),
    "harbor": (0.10, 52, -4.0, 0.8, 0.30),
    "children": (0.05, 12, -2.0, 0.1, 0.15),
    "island": (0.03, 70, -3.0, 1.2, 0.50),
}
WARDS = {"surgery": 0.5, "internal": 0.0, "cardiology": 0.8}
HABITS = {"never": 0.0, "former": 0.2, "current": 0.7}


def main(path: str) -> None:
    draw = np.random.default_rng(2024)
    names, shares = list(HOSPITALS), [row[0] for row in HOSPITALS.values()]
    with open(path, "w", newline="", encoding="utf-8") as file:  # noqa: PTH123
        writer = csv.writer(file)
        writer.writerow(["stay_id", "hospital", "age", "lactate", "pressure", "ward", "smoking", "complication"])
        for stay in range(6000):
            hospital = str(draw.choice(names, p=shares))
            _, mean_age, base, offset, missing = HOSPITALS[hospital]
            age = float(np.clip(draw.normal(mean_age, 9), 0, 100))
            lactate, pressure = draw.gamma(4, 0.5), draw.normal(125, 18)
            ward, smoking = str(draw.choice(list(WARDS))), str(draw.choice(list(HABITS), p=[0.5, 0.3, 0.2]))
            risk = base + 0.04 * (age - mean_age) + 0.8 * (lactate - 2) - 0.03 * (pressure - 125)
            risk += WARDS[ward] + HABITS[smoking]
            measured = "" if draw.random() < missing else f"{lactate + offset:.2f}"
            ill = draw.random() < 1 / (1 + np.exp(-risk))
            writer.writerow(
                [stay, hospital, f"{age:.0f}", measured, f"{pressure:.0f}", ward, smoking, "yes" if ill else "no"]
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "hospitals.csv")
