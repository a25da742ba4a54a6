"""Table 3 of *Attention Is All You Need* at small scale: every row, with several seeds.

    python table3.py --seeds 3 --minutes 10

Every row changes the same share of a model of half the width and half the layers. After training,
the change of BLEU against the first row is printed beside the paper's, with its standard error over
seeds. What is in work/ is not done again, and training that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path

LAYERS = "model.encoder_layers={0} model.decoder_layers={0}"
ROWS = {
    "base": ("", 25.8),
    "A: h = 1": ("model.heads=1", 24.9),
    "A: h = 4": ("model.heads=4", 25.5),
    "A: h = 16": ("model.heads=16", 25.8),
    "A: h = 32": ("model.heads=32", 25.4),
    "B: d_k a quarter": ("model.d_k=8", 25.1),
    "B: d_k a half": ("model.d_k=16", 25.4),
    "C: N a third": (LAYERS.format(1), 23.7),
    "C: N two thirds": (LAYERS.format(2), 25.3),
    "C: N four thirds": (LAYERS.format(4), 25.5),
    "C: d_model a half": ("model.d_model=128", 24.5),
    "C: d_model twice": ("model.d_model=512", 26.0),
    "C: d_ff a half": ("model.d_ff=512", 25.4),
    "C: d_ff twice": ("model.d_ff=2048", 26.2),
    "D: dropout 0": ("model.dropout=0", 24.6),
    "D: dropout 0.2": ("model.dropout=0.2", 25.5),
    "D: smoothing 0": ("train.loss.smoothing=0", 25.3),
    "D: smoothing 0.2": ("train.loss.smoothing=0.2", 25.7),
    "E: learned positions": ("model.positions=learned", 25.7),
}
"""What a row sets, and the paper's BLEU for it (newstest2013)."""
HERE = Path(__file__).resolve().parent


def main() -> None:
    """Trains what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs of every row")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, default=10, help="of training of every run")
    budget.add_argument("--updates", type=int, help="of every run, instead of minutes")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    arguments = parser.parse_args()
    length = [f"train.max_minutes={arguments.minutes}"]
    if arguments.updates:
        length = ["train.max_minutes=null", f"train.max_updates={arguments.updates}"]
    bleu = {
        row: [score(row, seed, length) for seed in range(1, arguments.seeds + 1)]
        for row in dict.fromkeys(["base", *arguments.rows])
    }
    print(table(bleu))


def score(row: str, seed: int, length: list[str]) -> float:
    """Gives the test set's BLEU of one run, which is trained if it is not there.

    Args:
        row: a name in ``ROWS``.
        seed: of the run.
        length: keys of the recipe that say how long to train.
    """
    name = "".join(letter if letter.isalnum() else "_" for letter in row)
    work = HERE / "work" / f"{name}-{seed}"
    result = work / "scores.jsonl"
    if not result.exists():
        settings = [*ROWS[row][0].split(), f"train.seed={seed}", *length]
        changes = [f"--set={setting}" for setting in settings]
        recipe, data = f"--config={HERE / 'small.yaml'}", "work/data-bin"
        nmt("train", recipe, f"--save-dir={work / 'run'}", *changes)
        nmt(
            "translate",
            f"--model={work / 'run'}",
            f"--input={data}/test.en",
            f"--output={work / 'test.hyp.de'}",
        )
        scores = nmt("score", recipe, f"--data={data}", "--json", str(work / "test.hyp.de"))
        result.write_text(scores, encoding="utf-8")
    scored = map(json.loads, result.read_text(encoding="utf-8").splitlines())
    return next(line["value"] for line in scored if line["metric"] == "bleu")


def nmt(*arguments: str) -> str:
    """Runs a command of nmt beside this file, and gives what it prints."""
    done = subprocess.run(["nmt", *arguments], cwd=HERE, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def table(bleu: dict[str, list[float]]) -> str:
    """Gives the table as Markdown; a change has the standard error of a difference of means."""
    lines = ["| row | BLEU | change | standard error | paper's change |", "|---|---|---|---|---|"]
    base = bleu["base"]
    for row, values in bleu.items():
        change = statistics.mean(values) - statistics.mean(base)
        error = (_squared_error(values) + _squared_error(base)) ** 0.5
        paper = ROWS[row][1] - ROWS["base"][1]
        cells = [row, f"{statistics.mean(values):.2f}"]
        if row == "base":
            cells += ["", "", ""]
        else:
            cells += [f"{change:+.2f}", f"{error:.2f}", f"{paper:+.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _squared_error(values: list[float]) -> float:
    return statistics.variance(values) / len(values) if len(values) > 1 else float("nan")


if __name__ == "__main__":
    main()
