"""`sconce serve` as a child process that ends with its parent, also when the parent is killed.

`python -m sconce.server_process serve …` is the child: its standard input is a pipe that the parent
holds, and at its end it drains and exits.
"""

import collections
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from .errors import SconceError

# Seconds that running requests get when the parent has ended.
_GRACE = 10
# Lines of the server's log that an error quotes.
_LINES = 20


class ServerProcess:
    """A server at a Unix socket, which needs no free port. `arguments` are those of `sconce serve`."""

    def __init__(self, arguments, environment=None):
        # Short, because the path of a socket has at most 107 bytes.
        self._folder = tempfile.mkdtemp(prefix="sconce-", dir="/tmp" if os.path.isdir("/tmp") else None)
        self.socket = os.path.join(self._folder, "http")
        self._log = collections.deque(maxlen=_LINES)
        command = [sys.executable, "-m", "sconce.server_process", "serve", "--unix-socket", self.socket, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | dict(environment or {})
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def pid(self):
        return self._process.pid

    def check(self):
        """Raises an error with the last lines of the log if the server has ended."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(1)
            raise SconceError("\n".join([f"`sconce serve` has ended with {code}; its last lines:", *self._log]))

    def close(self):
        """Lets running requests finish and ends the server."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(_GRACE + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read_log(self):
        for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            self._log.append(text)
            print(text, file=sys.stderr)


def _end_with_parent():
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)


if __name__ == "__main__":
    from .__main__ import main

    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv[0] = "sconce"
    main()
