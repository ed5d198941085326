"""Every error of the package. Each message names the thing, what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence


class PortaGemmError(Exception):
    """Base of all errors this package raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own would call __init__ with the finished message: an error in a worker process would
        # then never arrive, and multiprocessing.Pool waits for it for ever.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[PortaGemmError], args: tuple[object, ...], state: dict[str, object]
) -> PortaGemmError:
    """An error as it was before it was pickled."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class OperandError(PortaGemmError, ValueError):
    """An operand cannot be used: names the operand, what was given and what is allowed."""

    def __init__(self, operand: str, given: object, allowed: object, hint: str = "") -> None:
        self.operand, self.given, self.allowed = operand, given, allowed
        text = f"{operand}: given {given}; allowed: {allowed}"
        super().__init__(f"{text}. {hint}" if hint else text)


class DTypeError(OperandError, TypeError):
    """An operand's dtype is not supported."""


class ShapeError(OperandError):
    """Shapes do not fit each other."""


class DeviceError(OperandError):
    """Operands are on different devices, or on one without a backend."""


class LayoutError(OperandError):
    """A sparse, overlapping or otherwise unusable layout."""


class AutogradError(OperandError):
    """A gradient was asked for where none is implemented yet."""


class OptionError(OperandError):
    """A keyword argument has a value outside its choices."""


class UnsupportedError(PortaGemmError, NotImplementedError):
    """No kernel of ours does this and ``fallback="error"`` forbids the vendor's library."""

    def __init__(self, operation: str, reason: str, allowed: str) -> None:
        self.operation, self.reason, self.allowed = operation, reason, allowed
        super().__init__(f"{operation}: {reason}; allowed: {allowed}")


class ProfileError(PortaGemmError, ValueError):
    """An arch profile is unknown, unreadable or does not fit the schema."""


class UnknownBackendError(PortaGemmError, ValueError):
    """A backend name that does not exist."""

    def __init__(self, given: str, allowed: Sequence[str]) -> None:
        super().__init__(f"backend: given {given!r}; allowed: {', '.join(allowed)}")


class BackendUnavailableError(PortaGemmError, RuntimeError):
    """A backend was asked for by name and cannot run here."""

    def __init__(self, backend: str, reason: str) -> None:
        self.backend, self.reason = backend, reason
        super().__init__(f"backend {backend} is not available: {reason}")


class CompileError(PortaGemmError, RuntimeError):
    """The run-time compiler refused a kernel. `log` holds all it said."""

    def __init__(self, kernel: str, target: object, compiler: str, log: str) -> None:
        self.kernel, self.target, self.compiler, self.log = kernel, target, compiler, log
        super().__init__(f"kernel {kernel} for {target} did not compile with {compiler}:\n{log.strip()}")


class NoCompilerError(PortaGemmError, RuntimeError):
    """A kernel is neither cached nor in a pack, and no compiler is usable. Lists each one's reason."""


class LaunchError(PortaGemmError, RuntimeError):
    """A kernel could not be loaded or launched: names kernel, what it needs and what the device allows."""


class CacheError(PortaGemmError, RuntimeError):
    """The kernel cache or a kernel pack cannot be used as asked."""
