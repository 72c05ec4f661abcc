"""Reports: runs in, one self-contained page out; reads, never trains."""

from fedbasis.report.files import write_files
from fedbasis.report.find import find_runs
from fedbasis.report.page import write_report

__all__ = ["find_runs", "write_files", "write_report"]
