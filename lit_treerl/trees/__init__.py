"""Rollout trees and the search that grows them; imports nothing from the rest of the package."""
