"""Hardware profiles: what is in a machine, healthy and idle, every group of facts with its source."""

from testbed.profiles.model import Gpu, Profile
from testbed.profiles.reading import ProfileError, load, names

__all__ = ["Gpu", "Profile", "ProfileError", "load", "names"]
