"""Prints how many numbers a column of a CSV file has, and their sum."""

import csv
import sys

path, column = sys.argv[1:]
with open(path, encoding="utf-8", newline="") as file:
    numbers = [float(row[column]) for row in csv.DictReader(file)]
print(f"{column}: {len(numbers)} values, sum {sum(numbers):g}")
