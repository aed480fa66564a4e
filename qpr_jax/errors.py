"""The one exception for what a user can put right."""


class UserError(ValueError):
    """A user's mistake, told in one line: what was expected, what came, and the remedy.

    The command line prints it without a traceback; everything else that is raised is a bug.
    """
