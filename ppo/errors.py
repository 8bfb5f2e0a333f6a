"""Errors that are the user's to mend: shown as one line, without a traceback."""


class UserError(Exception):
    """Something the user can put right; the message says what, where and what to do."""


class ConfigError(UserError):
    """The configuration is refused."""


class EnvironmentFault(UserError):
    """An environment broke its contract or died; the message names the environment."""


class NonFiniteError(UserError):
    """A number that must be finite is not; the message names the quantity and the place."""


class CheckpointError(UserError):
    """A checkpoint or a run's folder cannot be used."""


class ContractError(UserError):
    """A rollout breaks the two-gate contract; the message names the row."""
