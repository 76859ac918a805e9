"""Names what `make demo` made, and fails where something is missing or nothing was learnt."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

LEAST_VAL_ACCURACY = 0.95


def summary(shards: pathlib.Path, model: pathlib.Path) -> tuple[list[str], list[str]]:
    """The lines to show, and what is wrong (empty when all is well).

    Args:
        shards: A data set as `beam_pipeline` leaves it.
        model: An output folder as `trainer` leaves it.
    """
    lines: list[str] = []
    problems: list[str] = []

    def name(what: str, path: pathlib.Path | None, note: str = "") -> None:
        if path is None or not path.exists():
            problems.append(f"{what} is missing ({path or shards / 'report'}).")
        else:
            lines.append(f"  {what:<22}{path}{note}")

    manifest = shards / "manifest.json"
    if manifest.is_file():
        found = json.loads(manifest.read_text(encoding="utf-8"))
        for split, content in found["splits"].items():
            files = [shards / shard["file"] for shard in content["shards"]]
            note = f" ({len(files)} files, {content['num_records']} records)"
            if all(file.is_file() for file in files):
                lines.append(f"  {'shards, ' + split:<22}{shards}/{split}-*.tfrecord{note}")
            else:
                problems.append(f"a shard of the split {split} is missing below {shards}.")
    name("manifest", manifest)
    pictures = sorted((shards / "report").glob("*.png"))
    name("report", shards / "report" / "index.html")
    name("report picture", pictures[0] if pictures else None)
    name("model", model / "model.keras")
    name("training report", model / "report" / "index.html")
    metrics = model / "metrics.jsonl"
    name("metrics", metrics)
    if metrics.is_file():
        accuracy = float(json.loads(metrics.read_text("utf-8").splitlines()[-1])["val_accuracy"])
        lines.append(f"  {'validation accuracy':<22}{accuracy:.4f}")
        if not accuracy >= LEAST_VAL_ACCURACY:
            problems.append(f"the validation accuracy is below {LEAST_VAL_ACCURACY}.")
    return lines, problems


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the summary; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shards", required=True, type=pathlib.Path, help="the data set")
    parser.add_argument("--model", required=True, type=pathlib.Path, help="the trainer's output")
    args = parser.parse_args(argv)
    lines, problems = summary(args.shards, args.model)
    print("\nThe demo made:", *lines, sep="\n")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
