"""The error for settings that cannot work."""


class SettingsError(ValueError):
    """A setting is wrong; the message names it and says what would be right."""
