"""What only the embedded store promises."""
