"""How much each caller may use at the same moment: fair shares, rates, and places for long polls."""
