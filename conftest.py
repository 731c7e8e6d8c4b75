"""Registers the pytest plugin where the package is not installed."""

from importlib.metadata import entry_points

if not any(point.value == "graphcheck.pytest_plugin" for point in entry_points(group="pytest11")):
    pytest_plugins = ["graphcheck.pytest_plugin"]
