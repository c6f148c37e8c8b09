"""Hardware profiles: what is in a machine, one YAML file each, every group of facts with its source.

A profile is data about one kind of machine as it leaves the factory: healthy and idle.  What tells two
machines of a kind apart (UUIDs, serial numbers, boot ids) is made up when one is plugged in; what goes wrong
with it is a fault (`testbed.hardware`).
"""

from testbed.profiles.model import Gpu, Profile
from testbed.profiles.reading import ProfileError, load, names

__all__ = ["Gpu", "Profile", "ProfileError", "load", "names"]
