"""What a plugin brings works in every command, told once."""

import os
import subprocess
import sys
from pathlib import Path

PLUGIN = """
from dataclasses import dataclass

from nmt.models import architectures
from nmt.training.losses import CrossEntropy, losses

architectures.add("mine", architectures["transformer_tiny"])


@losses.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(CrossEntropy):
    "A loss of one's own."
"""


def test_a_plugin_beside_the_recipe_is_found_by_every_command(
    recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "my_parts.py").write_text(PLUGIN)
    text = recipe.read_text().replace("transformer_tiny", "mine")
    text = text.replace("train:\n", "train:\n  loss: mine\n")
    (tmp_path / "sub" / "nmt.yaml").write_text(f"plugins: [my_parts]\n{text}")

    def nmt(*arguments: object, cwd: Path = tmp_path) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "nmt", *map(str, arguments)],
            input="one two\n",
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    nmt("train", "--config", "sub/nmt.yaml", "--data", dataset, "--save-dir", "run")
    translated = nmt("translate", "--config", "sub/nmt.yaml", "--model", "run")
    assert translated.count("\n") == 1
    nmt("average-checkpoints", "--run", tmp_path / "run", "--best", 2, cwd=tmp_path / "sub")
