"""What a user can put right, and what a user asked for."""


class UserError(ValueError):
    """A user's mistake, told in one line: what was expected, what came, and the remedy.

    The command line prints it without a traceback; everything else that is raised is a bug.
    """


class Interrupted(Exception):
    """SIGTERM or Ctrl-C came and the state is saved; `args[0]` is the signal's number."""


def told(error: BaseException) -> tuple[str, int] | None:
    """The line and the exit status of an error that is no bug; None for one that is."""
    match error:
        case UserError():
            return f"error: {error}", 1
        case KeyboardInterrupt():
            return "stopped", 130
        case OSError():
            return f"error: {error}; give the command again when this is put right", 1
    return None
