"""The application for two tenants, and its callers."""

from tests.tenants import *
