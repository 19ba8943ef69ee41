"""The tests of ``tests/contract/groups`` on trees; those that only the service can pass are skipped with a reason."""

from tests.contract.groups.test_around import test_other_groups, test_plain_commits
from tests.contract.groups.test_contract import *  # noqa: F403 - every test

__all__ = ["test_other_groups", "test_plain_commits"]
