"""A policy for ALFWorld small enough for a laptop, and the demonstrations that it starts from."""

from lit_treerl.data.alfworld.demonstrations import AlfworldDemonstrations, HouseholdNoise, household_episode

__all__ = ["AlfworldDemonstrations", "HouseholdNoise", "household_episode"]
