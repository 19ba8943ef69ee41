"""A window of Chromium that records errors."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Dialog, Page, expect


class Watched:
    """A window on the console.

    Args:
        page: The window.
        url: URL of the console.

    Attributes:
        troubles: Errors of scripts, blocks by the policy, and dialogs, which only foreign scripts open.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.troubles: list[str] = []
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", self._dismiss_dialog)
        page.on("console", self._record_policy_violation)

    def log_in(self, key: str) -> None:
        self.page.goto(self.url)
        expect(self.page.get_by_role("heading", level=1)).to_have_text("Log in")
        self.page.keyboard.type(key)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("heading", level=1)).to_have_text("Overview of queuey")

    def _dismiss_dialog(self, dialog: Dialog) -> None:
        self.troubles.append(dialog.message)
        dialog.dismiss()

    def _record_policy_violation(self, said: ConsoleMessage) -> None:
        if "Content Security" in said.text:
            self.troubles.append(said.text)

    def open(self, address: str) -> None:
        """Opens a page, and waits for its parts."""
        self.page.goto(f"{self.url}/{address}" if address else self.url)
        expect(self.page.locator("[hx-get][hx-trigger=load] > a")).to_have_count(0)


WCAG_AA_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
COLOR_RULES = ["color-contrast"]
"""The rule that checks colors."""


def find_accessibility_violations(page: Page, axe: str, rules: list[str] = WCAG_AA_RULES) -> list[str]:
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    violations: list[str] = page.evaluate(
        "rules => axe.run({runOnly: rules})"
        ".then(found => found.violations.map(one => one.id + ': ' + one.nodes[0].html))",
        rules,
    )
    return violations
