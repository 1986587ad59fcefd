"""What happens to a round's reports after they arrived: shuffled, averaged, stepped along.

`shuffler` is where a report's sender is forgotten and where their exact sum is formed; `optimizer`
turns the average into the next model.
"""
