"""Counts the tests of a pytest report by file; exits with 1 if fewer than LEAST passed: count.py
REPORT LEAST."""

import collections
import sys
from xml.etree import ElementTree

KINDS = ("passed", "failed", "skipped")


def kind(case):
    if case.find("skipped") is not None:
        return "skipped"
    return "failed" if case.find("failure") is not None or case.find("error") is not None else "passed"


def main(report, least):
    counts = collections.defaultdict(collections.Counter)
    for case in ElementTree.parse(report).iter("testcase"):
        counts[case.get("classname").split(".")[-1]][kind(case)] += 1
    counts["all"] = sum(counts.values(), collections.Counter())
    print(f"{'':24}" + "".join(f"{k:>9}" for k in KINDS))
    for name, count in counts.items():
        print(f"{name:24}" + "".join(f"{count[k]:9}" for k in KINDS))
    if counts["all"]["passed"] < int(least):
        sys.exit(f"{counts['all']['passed']} passed, and {least} did before")


main(*sys.argv[1:])
