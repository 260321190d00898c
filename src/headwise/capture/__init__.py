"""Catching attention: the watch, the places where attention can be caught, and the names of layers."""

from headwise.capture.watching import Watch, watch

__all__ = ["Watch", "watch"]
