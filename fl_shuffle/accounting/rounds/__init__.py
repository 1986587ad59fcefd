"""Many rounds: what was executed, who took part when, and what it costs together.

Events are data; a client's history is how often it met each type of round; equal rounds are
composed by repetition.
"""
