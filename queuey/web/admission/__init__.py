"""Limits on what each caller may use at a time: fair shares, rates, and places for long polls."""
