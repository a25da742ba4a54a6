"""``nmt report``: what training measured, as a page, as charts, and as data."""

from nmt.report.charts import Chart, Line
from nmt.report.curves import Curve, averaged, mean
from nmt.report.document import Report, read_runs
from nmt.report.log import Log, read_log

__all__ = ["Chart", "Curve", "Line", "Log", "Report", "averaged", "mean", "read_log", "read_runs"]
