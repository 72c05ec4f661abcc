"""Reports: runs in, one self-contained page out; reads, never trains."""

from fedbasis.report.page import write_report

__all__ = ["write_report"]
