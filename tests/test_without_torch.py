"""Commands that need no model of this package start and end without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nmt.formats import export_formats, export_run

PROGRAM = """
import sys
from nmt.__main__ import main
try:
    main()
finally:
    large = {"torch", "numpy", "tqdm", "sacrebleu"}
    print(*sorted(large & sys.modules.keys()), file=sys.stderr)
"""


def run(directory: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start a command whose last line on stderr names the large packages that it has imported."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        cwd=directory,
        env={**os.environ, "NMT_CACHE": str(directory / "cache")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_torch_is_not_imported_where_no_model_of_this_package_runs(
    trained: Path, dataset: Path, corpus: Path, tmp_path: Path
) -> None:
    export_run(trained, export_formats["ctranslate2"], "fp32", tmp_path / "export")
    (tmp_path / "nbest").write_text("0 ||| eins ||| F= 1 ||| -1\n0 ||| zwei ||| F= 1 ||| -2\n")
    (tmp_path / "reference").write_text("zwei\n")
    data = ("-s", "en", "-t", "de", "--train", corpus / "train", "--valid", corpus / "valid")
    data = (*data, "--output-dir", "data", "--vocab-size", 300)
    text, reference = corpus / "test.en", corpus / "test.de"
    assert run(tmp_path, "translate", text, "--model", trained).wait() == 0  # exports the run
    commands: list[tuple[object, ...]] = [
        ("translate", text, "--model", trained),
        ("score", reference, "--model", trained, "--source", text),
        ("translate", text, "--model", "export"),
        ("translate", text, "--model", "export", "--json", "--alignments", "--n-best", 1),
        ("score", reference, "--reference", reference),
        ("rescore", "nbest", "--reference", "reference"),
        ("inspect", trained),
        ("inspect", dataset),
        ("preprocess", *data),
        ("align", "--source", text, "--target", reference),
    ]

    for command in commands:
        done = run(tmp_path, *command)
        said = done.communicate()[1]
        assert done.returncode == 0, (command, said)
        assert "torch" not in said.splitlines()[-1].split(), command
        if command[0] == "translate" and "--alignments" not in command:
            assert said.splitlines()[-1] == "", command


def test_a_server_of_an_export_does_not_import_torch(trained: Path, tmp_path: Path) -> None:
    export_run(trained, export_formats["ctranslate2"], "fp32", tmp_path / "export")
    with run(tmp_path, "serve", "--model", "export", "--port", 0) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("http")
        loaded = Path(f"/proc/{server.pid}/maps").read_text()
        server.terminate()
    assert "ctranslate2" in loaded
    assert "libtorch" not in loaded
