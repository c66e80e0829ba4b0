"""How many examples a property is tried on, and whether the tests are thorough."""

from hypothesis import settings


def is_thorough():
    """Return whether the tests run with --slow."""
    return not settings().derandomize


def examples(count, **options):
    """Return settings for this many examples, and for ten times as many with --slow, which draws others each time."""
    return settings(max_examples=10 * count if is_thorough() else count, **options)
