"""Exceptions. Each is also the built-in exception that a caller would expect."""


class SconceError(Exception):
    """Any error of Sconce."""


class InputError(SconceError, ValueError):
    """The arguments cannot be used as they are."""


class FilesError(SconceError, OSError):
    """The model's files are missing, damaged or not supported."""


class DeviceError(SconceError, RuntimeError):
    """The device lacks a kernel or memory, or failed."""


class UnsoundError(SconceError, ArithmeticError):
    """The model's output holds infinities or NaN."""


class CancelledError(SconceError):
    """The request was cancelled."""


class ClosedError(SconceError, ValueError):
    """The object is closed."""


class InternalError(SconceError, RuntimeError):
    """A bug of Sconce. Please report it."""
