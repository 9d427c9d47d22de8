"""The one family of errors that fedloom raises on purpose: a sentence for a person, never a stack trace."""


class FedloomError(ValueError):
    """Something the user can put right; the message names the field, the value and what is allowed."""


class Interrupted(FedloomError):
    """The run was asked to stop; its folder can be resumed."""


class TooFew(FedloomError):
    """A round got fewer uploads than the recipe allows; nothing was combined, and the folder can be resumed."""
