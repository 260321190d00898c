"""A profile as one offline HTML page."""

from headwise.report.html import page
from headwise.report.payload import payload

__all__ = ["page", "payload"]
