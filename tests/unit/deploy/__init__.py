"""Tests of the programs that start servers on this machine."""
