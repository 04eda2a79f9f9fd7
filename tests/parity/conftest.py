from tests.parity.recording import parity_results, pytest_addoption, pytest_configure

__all__ = ["parity_results", "pytest_addoption", "pytest_configure"]
