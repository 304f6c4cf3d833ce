class SuiteError(Exception):
    """What the user can mend, in a sentence."""
