"""Histories: what clients asked and what they got, as JSON lines, and whether one order of it all explains every
answer.
"""
