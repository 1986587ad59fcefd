"""Upper bounds where only the sum of a round's reports leaves: nobody sees single reports."""
