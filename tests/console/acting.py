"""Acts at the console as a user performs them: open the page, fill in the form, send it, read the result."""

from __future__ import annotations

import re
from html import unescape

from tests.console.browser import Browser
from tests.console.test_pages import text_of
from tests.web.gateway_calls import Reply

Q = "/console/a/queuey/q"


def act(browser: Browser, address: str, query: str = "", **fields: str) -> Reply:
    return browser.post(address, read_form(browser, address, query) | fields)


def read_form(browser: Browser, address: str, query: str = "") -> dict[str, str]:
    """Returns the fields of the page's action form with their values; text areas are empty."""
    reply = browser.get(address, query=query)
    assert reply.status == 200, reply.text
    sent = reply.text[reply.text.index('method="post" action="/console/a') :]
    fields = dict(re.findall(r'<input (?:type="hidden" )?name="([^"]*)" value="([^"]*)"', sent))
    fields |= dict.fromkeys(re.findall(r'<textarea name="([^"]*)"', sent), "")
    fields |= {
        name: chosen[0] if (chosen := re.findall(r'<option value="([^"]*)" selected', options)) else ""
        for name, options in re.findall(r'<select name="([^"]*)">(.*?)</select>', sent, re.DOTALL)
    }
    return {name: unescape(value) for name, value in fields.items()}


def follow_redirect(browser: Browser, reply: Reply) -> str:
    """Follows the redirect after a form was sent, and returns the text of that page."""
    assert reply.status == 303, reply.text
    return text_of(browser.get(reply.headers["Location"]).text)
