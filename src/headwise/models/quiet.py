"""Loading without chatter: transformers and the hub client log, warn and draw bars of their own."""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet(*, hide_stderr: bool = False) -> Iterator[None]:
    """Only errors are logged and no bar is drawn while inside; a download's bar stays, in a terminal.

    What matters to a user of the model (weights that the file lacks, say) is reported by open_model itself.

    Args:
        hide_stderr: For code that draws a bar and cannot be asked not to.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as chatter

    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub", "accelerate")]
    levels = [logger.level for logger in loggers]
    bars = chatter.is_progress_bar_enabled()
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        chatter.disable_progress_bar()
        if sys.stderr.isatty():
            enable_progress_bars()
        with warnings.catch_warnings(), redirect_stderr(StringIO()) if hide_stderr else nullcontext():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            chatter.enable_progress_bar()
        else:
            disable_progress_bars()
