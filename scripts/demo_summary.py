"""Prints the files that `make demo` wrote and the validation accuracy.

The script fails if a file is missing or if the accuracy is too low for a model that has learnt.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

LEAST_VAL_ACCURACY = 0.95
SHARDS = ("train-*.tfrecord", "manifest.json", "report/index.html")
MODEL = ("model.keras", "report/index.html", "metrics.jsonl")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the summary and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shards", required=True, type=pathlib.Path, help="folder of the dataset")
    parser.add_argument("--model", required=True, type=pathlib.Path, help="folder of the model")
    args = parser.parse_args(argv)
    print("\nThe demo wrote:")
    for folder, names in ((args.shards, SHARDS), (args.model, MODEL)):
        for name in names:
            found = sorted(folder.glob(name))
            if not found:
                print(f"error: {folder / name} is missing.", file=sys.stderr)
                return 1
            print(f"  {found[0]}" + (f" and {len(found) - 1} more" if found[1:] else ""))
    last = (args.model / "metrics.jsonl").read_text("utf-8").splitlines()[-1]
    accuracy = float(json.loads(last)["val_accuracy"])
    print(f"  validation accuracy {accuracy:.4f} after the last epoch")
    # `not >=` instead of `<`, because an accuracy of NaN has to fail as well.
    if not accuracy >= LEAST_VAL_ACCURACY:
        print(f"error: the validation accuracy is below {LEAST_VAL_ACCURACY}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
