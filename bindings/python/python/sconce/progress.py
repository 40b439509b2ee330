"""Progress bars: tqdm's where it is installed, else plain lines on standard error."""

import logging
import sys
import time

logger = logging.getLogger("sconce")


class PlainBar:
    """A bar without tqdm: one line that is rewritten, at most ten times a second."""

    def __init__(self, total, desc, unit):
        self.total, self.desc, self.unit = total, desc, unit
        self.done, self.shown = 0, 0.0

    def update(self, n):
        self.done += n
        now = time.monotonic()
        if now - self.shown > 0.1 or self.done == self.total:
            self.shown = now
            print(f"\r{self.desc}: {self.done}/{self.total or '?'} {self.unit}", end="", file=sys.stderr, flush=True)

    def close(self):
        print(file=sys.stderr)


def bar(total, desc, unit):
    """A progress bar with `update` and `close`."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return PlainBar(total, desc, unit)
    return tqdm(total=total or None, desc=desc, unit=unit, unit_scale=unit == "B")


class LoadProgress:
    """Shows downloads as bars, and logs notes (where files come from, which device was chosen)."""

    def __init__(self):
        self.current = None

    def __call__(self, kind, text, number):
        if kind == "note":
            logger.info(text)
        elif kind == "begin":
            self.current = bar(number, text, "B") if sys.stderr is not None and sys.stderr.isatty() else None
        elif kind == "advance" and self.current is not None:
            self.current.update(number)
        elif kind == "end" and self.current is not None:
            self.current.close()
            self.current = None
