"""What a user can put right, and what a user asked for."""


class UserError(ValueError):
    """A user's mistake, told in one line: what was expected, what came, and the remedy.

    The command line prints it without a traceback; everything else that is raised is a bug.
    """


class Interrupted(Exception):
    """SIGTERM or Ctrl-C came and the state is saved; `args[0]` is the signal's number."""
