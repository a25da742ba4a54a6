"""Reports to MLflow; needs the extra ``nmt-toolkit[mlflow]``.

MLflow's environment variables say where: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nmt.errors import NmtError, install
from nmt.runs import Run
from nmt.training.loggers import numbers, parameters

IDENTITY = "nmt.identity"
"""Tag by which a resumed run is found again."""


class MlflowLogger:
    """Writes each number of a record to the metric RECORD/KEY, over updates."""

    name = "mlflow"

    def __init__(self, run: Run) -> None:
        """Begin a run of MLflow, or continue the one of a resumed training.

        Raises:
            NmtError: MLflow is not installed.
        """
        try:
            import mlflow
        except ImportError:
            raise NmtError(f"train.mlflow needs MLflow; {install('mlflow')}") from None
        self._mlflow = mlflow
        same = f"tags.`{IDENTITY}` = '{run.identity}'"
        earlier = mlflow.search_runs(filter_string=same, max_results=1, output_format="list")
        if earlier:
            mlflow.start_run(run_id=earlier[0].info.run_id)
        else:
            mlflow.start_run(run_name=run.path.resolve().name, tags={IDENTITY: run.identity})
            mlflow.log_params(parameters(run))

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Add the numbers of a record."""
        allowed = {_allowed(name): value for name, value in numbers(kind, values).items()}
        self._mlflow.log_metrics(allowed, step=values["update"])

    def close(self) -> None:
        """End the run of MLflow."""
        self._mlflow.end_run()


def _allowed(name: str) -> str:
    """Return the name of a metric in the characters that MLflow allows: chrfpp for chrf++."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("+", "p"), flags=re.ASCII)
