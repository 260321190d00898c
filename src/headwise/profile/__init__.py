"""Profile: accumulated numbers per head, and the file they are kept in. No torch here."""

from headwise.profile.profiles import Profile
from headwise.profile.records import Group, Layer, Sequence, Unseen

__all__ = ["Group", "Layer", "Profile", "Sequence", "Unseen"]
