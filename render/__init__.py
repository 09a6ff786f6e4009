"""Draws blocks and steps on a terminal and on a page; knows no technique."""
