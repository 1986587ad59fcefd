"""Rounds whose shuffler is a party of its own: what nodes hand over, and what the server gets.

A node seals each report and gives it to the shuffler; its reply to the server holds nothing. The
server begins a round at the shuffler, asks the clients, closes the round, writes down who is in the
batch, and only then fetches it. The shuffler has one batch for each round and gives the same bytes
until the step they led to is durable: whoever is killed, the round goes on where it was.
"""
